"""The subcommands of `xla-debug`, one a file."""

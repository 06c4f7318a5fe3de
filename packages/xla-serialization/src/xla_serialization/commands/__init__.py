"""The subcommands of `python -m xla_serialization`, one a file."""

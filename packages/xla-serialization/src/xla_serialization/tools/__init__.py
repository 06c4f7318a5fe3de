"""The work of the subcommands: open a path of any known format, convert it, verify it."""

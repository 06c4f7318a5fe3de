"""Work of the command: open a path of any known format, convert it, verify it."""

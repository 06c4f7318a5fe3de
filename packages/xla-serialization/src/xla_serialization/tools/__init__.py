"""What the command does: open a path of any known format, convert it, verify it."""

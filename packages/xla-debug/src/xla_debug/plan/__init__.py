"""What a compiler says of programs for devices that are not there: memory, work, traffic, estimated time."""

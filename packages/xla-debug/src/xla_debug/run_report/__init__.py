"""The report of a run as data: its JSON schema, its files, and computations on it."""

"""The report of a run as data: its JSON schema, the files, and what is computed from it."""

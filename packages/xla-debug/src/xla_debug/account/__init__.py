"""The account of a run: what was compiled, synced, moved and held, and where the time went."""

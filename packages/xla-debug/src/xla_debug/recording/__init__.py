"""Record a run as it happens: what was compiled, synced, moved and held, and where the time went."""

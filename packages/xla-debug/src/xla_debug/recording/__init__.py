"""Record a run as it happens: compilations, syncs, copies, live memory, and where the time goes."""

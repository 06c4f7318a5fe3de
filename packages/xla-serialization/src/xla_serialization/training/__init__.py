"""Checkpoints of the steps of a run: the manager, retention, preemption, and optimizer state to restore into."""

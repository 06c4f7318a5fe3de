"""Checkpoints of a run's steps: the manager, retention, preemption, and optimizer state to restore into."""

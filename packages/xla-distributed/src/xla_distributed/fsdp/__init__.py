"""Modules whose parameters are sharded among the replicas and gathered while they are used (FSDP)."""

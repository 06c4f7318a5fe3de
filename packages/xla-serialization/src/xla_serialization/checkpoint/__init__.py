"""Save and load tensors as checkpoint folders: whole or in shards, into new tensors or in place."""

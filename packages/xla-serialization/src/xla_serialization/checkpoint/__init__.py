"""Save and load checkpoint folders: tensors whole or in shards, into new tensors or in place."""

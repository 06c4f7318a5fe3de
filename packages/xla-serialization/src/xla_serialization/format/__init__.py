"""The format of FORMAT.md: index, manifest, tree and shards, without any device."""

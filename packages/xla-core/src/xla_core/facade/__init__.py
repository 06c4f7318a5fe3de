"""What `torch_xla.*` re-exports: the user's names, built on the rooms below."""

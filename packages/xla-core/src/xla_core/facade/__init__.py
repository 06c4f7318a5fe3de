"""The user's names, which `torch_xla.*` re-exports, built on the rooms below."""

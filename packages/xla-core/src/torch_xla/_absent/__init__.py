"""Modules that say which wheel is missing. This folder is the last entry of `torch_xla.__path__`, so that real ones come first."""

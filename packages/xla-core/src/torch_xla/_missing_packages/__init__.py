"""Modules that raise ImportError naming the package to install. This folder is last in `torch_xla.__path__`: real ones come first."""

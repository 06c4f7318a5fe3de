"""The engine: lazy tensors, graphs, compiling and running them."""

"""Programs that are pending, saved to files."""

from xla_debug.graphs.graph_saver import save_tensors_graph

__all__ = ["save_tensors_graph"]

"""Loops, branches and pure functions that stay one operation of the graph, with bodies that are recorded once."""

"""Loops, branches and pure functions, each one operation of the graph with bodies that are recorded once."""

"""Collectives among the replicas of a job: the functions that users call, and the operations of graphs behind them."""

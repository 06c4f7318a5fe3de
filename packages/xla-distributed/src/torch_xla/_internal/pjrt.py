"""Launchers under the names of the older releases."""

from xla_distributed.job.launch import initialize_multiprocess, initialize_singleprocess, spawn
from xla_distributed.job.replicas import run_multiprocess
from xla_distributed.job.thread_replicas import spawn_threads

__all__ = ["initialize_multiprocess", "initialize_singleprocess", "run_multiprocess", "spawn", "spawn_threads"]

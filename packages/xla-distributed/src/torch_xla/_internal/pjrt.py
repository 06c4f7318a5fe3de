"""Launchers under the names of the older releases."""

from __future__ import annotations

from xla_distributed.launch import initialize_multiprocess, initialize_singleprocess, spawn
from xla_distributed.meeting import spawn_threads
from xla_distributed.replicas import run_multiprocess

__all__ = ["initialize_multiprocess", "initialize_singleprocess", "run_multiprocess", "spawn", "spawn_threads"]

"""What users import: every public name is where the API has it; what the core asks for by entry point is offered."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import torch_xla.distributed.spmd as xs
from torch_xla.distributed.spmd import api, debugging, xla_sharding
from xla_spmd.op_sharding import OpSharding

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_all_names_are_there() -> None:
    for module in (xs, xla_sharding, debugging, api):
        assert len(set(module.__all__)) == len(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)
    elsewhere = {"debugging", "xla_sharding", "api", *api.__all__}
    assert {name for name in xs.__all__ if name not in elsewhere} <= set(xla_sharding.__all__)
    assert all(getattr(xs, name) is getattr(api, name) for name in xs.__all__ if hasattr(api, name))
    assert all(getattr(xs, name) is getattr(xla_sharding, name) for name in xs.__all__ if hasattr(xla_sharding, name))


def test_what_the_core_asks_for() -> None:
    (place,) = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]["xla_core.plugins"].values()
    module, _, name = place.partition(":")
    backend = getattr(importlib.import_module(module), name).sharding()
    made = backend.OpSharding(*xs.Mesh(range(4), (2, 2))._get_op_sharding_args((0, None)))
    assert isinstance(made, OpSharding) and str(made) == "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"

"""Consolidate the shards of all replicas: make whole state dicts from sharded ones, and from files of them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

import torch

from xla_distributed.fsdp.sharding import ParameterSharding

State = dict[str, Any]


def consolidate_sharded_state_dicts(state_dict_list: Sequence[Mapping[str, Any]], shard_metadata: Mapping[str, Any]) -> State:
    """The state dict of the module before it was wrapped, on the devices that the shards are on.

    state_dict_list: of all replicas of one sharding group, in their order there. shard_metadata: `get_shard_metadata()` of any of them.
    Raises ValueError for another number of state dicts, and for shards that do not make the parameter.
    """
    size = shard_metadata["world_size"]
    if len(state_dict_list) != size:
        raise ValueError(f"{len(state_dict_list)} state dicts for shards of {size} replicas: give one for each replica, in order")
    consolidated: State = {}
    for name, value in state_dict_list[0].items():
        info = shard_metadata["shard_info"].get(name)
        if info is None:
            consolidated[name] = _restore_dtype(value, shard_metadata["buffer_info"].get(name))
            continue
        if info["same_as"] in consolidated:  # tied: shows the same data
            consolidated[name] = consolidated[info["same_as"]]
            continue
        joined = _joined(name, [state[name] for state in state_dict_list], ParameterSharding(tuple(info["shape"]), size, info["on_dim_0"]))
        flat = shard_metadata["flatten_info"].get(name)
        consolidated.update({name: joined} if flat is None else _parts(name, joined, flat))
    return consolidated


def _restore_dtype(value: Any, dtype: str | None) -> Any:
    """A buffer in the dtype that it had before it was converted."""
    if dtype is None or not isinstance(value, torch.Tensor):
        return value
    return value.to(getattr(torch, dtype.removeprefix("torch.")))


def _joined(name: str, shards: list[torch.Tensor], sharding: ParameterSharding) -> torch.Tensor:
    padded = torch.cat([shard.detach() for shard in shards])
    expected = sharding.padded(torch.empty(sharding.shape, device="meta")).shape
    if padded.shape != expected:
        raise ValueError(f"{name}: shards of shapes {[tuple(shard.shape) for shard in shards]} do not make a parameter of {sharding.shape}")
    return sharding.unsharded(padded).clone()


def _parts(name: str, flat: torch.Tensor, info: Mapping[str, Any]) -> State:
    """The parameters that a flat one holds; tied ones show the same data."""
    path = name.rpartition(".")[0]
    prefix = f"{path}." if path else ""
    sizes = [math.prod(shape) for shape in info["shapes"]]
    views = [part.view(shape) for part, shape in zip(flat.split(sizes), info["shapes"], strict=True)]
    parameters = dict(zip(info["names"], views, strict=True))
    parameters.update({name: parameters[first] for name, first in info["shared"].items()})
    return {prefix + name: view for name, view in parameters.items()}


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", save_path: str = "", save_model: bool = True
) -> tuple[State, str | None]:
    """The whole state dict, on the CPU, from the files `ckpt_prefix + ckpt_suffix`, and the path to which it was saved.

    Each file was written by torch.save or xm.save, on one replica, as {"model": model.state_dict(), "shard_metadata":
    model.get_shard_metadata()}; other entries are left out. ckpt_suffix: a pattern as of `glob`. save_path: of a file {"model": whole};
    "": ckpt_prefix + "_consolidated.pth". save_model: write it. Files are read with `weights_only=True`.
    Raises FileNotFoundError if files are missing, ValueError for files of something else.
    """
    target = save_path or f"{ckpt_prefix}_consolidated.pth"
    by_rank = {}
    for path in sorted(glob(ckpt_prefix + ckpt_suffix)):
        if Path(path) == Path(target):  # of an earlier run
            continue
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if not isinstance(loaded, dict) or not {"model", "shard_metadata"} <= loaded.keys():
            raise ValueError(f"{path} does not have the entries 'model' and 'shard_metadata': save both on each replica")
        by_rank[loaded["shard_metadata"]["rank"]] = loaded["model"], loaded["shard_metadata"]
    if not by_rank:
        raise FileNotFoundError(f"no files match {ckpt_prefix + ckpt_suffix}")
    metadata = next(iter(by_rank.values()))[1]
    missing = [rank for rank in range(metadata["world_size"]) if rank not in by_rank]
    if missing:
        raise FileNotFoundError(f"the files {ckpt_prefix + ckpt_suffix} have no shards of replicas {missing} of {metadata['world_size']}")
    consolidated = consolidate_sharded_state_dicts([by_rank[rank][0] for rank in range(metadata["world_size"])], metadata)
    if save_model:
        torch.save({"model": consolidated}, target)
    return consolidated, target if save_model else None


def main() -> None:
    """The command: read the files of all replicas, write one."""
    parser = argparse.ArgumentParser(description="Put the sharded checkpoints of all replicas together.")
    parser.add_argument("--ckpt_prefix", required=True, help="what the paths of all files begin with")
    parser.add_argument("--ckpt_suffix", default="*.pth", help="a pattern of the rest of the paths (default: %(default)s)")
    parser.add_argument("--save_path", default="", help="where to write (default: the prefix and _consolidated.pth)")
    options = parser.parse_args()
    consolidated, path = consolidate_sharded_model_checkpoints(options.ckpt_prefix, options.ckpt_suffix, options.save_path)
    print(f"{len(consolidated)} entries in {path}")

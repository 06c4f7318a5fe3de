"""Orbax writes tensors of the device and reads them back, as the jax arrays that they are; other JAX programs read what was written."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import torch_xla
import xla_serialization
from xla_core.abi.tensors import buffer_of, materialize, tensor_from_buffer
from xla_serialization import MissingCheckpointError

Run = Callable[..., Any]
JAX_ALONE = """
import sys, jax, numpy as np, orbax.checkpoint as ocp
found = ocp.StandardCheckpointer().restore(sys.argv[1])
assert "torch" not in sys.modules
np.savez(sys.argv[2], **{name: np.asarray(value) for name, value in found["model"].items()})
"""


def save(path: Path, state: Any) -> None:
    """By orbax, wholly when this returns."""
    ocp.Checkpointer(ocp.StandardCheckpointHandler()).save(path, args=ocp.args.StandardSave(state))


def restore(path: Path) -> Any:
    """By orbax, as what was saved. Without x64, jax would make 32 bits of 64."""
    with jax.enable_x64(True):
        return ocp.Checkpointer(ocp.StandardCheckpointHandler()).restore(path)


def as_jax(state: Any) -> Any:
    """The state with jax arrays in place of tensors on the device, without copies, and NumPy's in place of those on the CPU."""
    materialize([one for one in tree_leaves(state) if isinstance(one, torch.Tensor) and one.device.type == "xla"])
    return tree_map_only(torch.Tensor, lambda one: buffer_of(one) if one.device.type == "xla" else one.numpy(), state)


def as_torch(state: Any) -> Any:
    """The other way."""
    state = tree_map_only(jax.Array, tensor_from_buffer, state)
    return tree_map_only(np.ndarray, torch.from_numpy, state)


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).to("xla")


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step)
        model(torch.randn(4, 6, generator=generator).to("xla")).square().mean().backward()
        optimizer.step()
        torch_xla.sync()


def test_a_run_goes_on_from_what_orbax_saved(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, range(3))
    state = {"model": dict(model.state_dict()), "moments": [dict(one) for one in optimizer.state.values()], "step": 3}
    save(tmp_path / "saved", as_jax(state))
    train(model, optimizer, range(3, 6))

    other = network()
    other_optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
    found = as_torch(restore(tmp_path / "saved"))
    other.load_state_dict(found["model"])
    other_optimizer.load_state_dict({**other_optimizer.state_dict(), "state": dict(enumerate(found["moments"]))})
    train(other, other_optimizer, range(int(found["step"]), 6))
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name].cpu(), value.cpu()), name


def test_a_program_of_jax_alone_reads_it(tmp_path: Path) -> None:
    model = network()
    save(tmp_path / "saved", as_jax({"model": dict(model.state_dict())}))
    subprocess.run([sys.executable, "-c", JAX_ALONE, str(tmp_path / "saved"), str(tmp_path / "found.npz")], check=True)
    found = np.load(tmp_path / "found.npz")
    for name, value in copy.deepcopy(model).cpu().state_dict().items():
        assert np.array_equal(found[name], value.numpy()), name


def test_what_jax_saved_becomes_a_module_and_a_checkpoint_of_ours(tmp_path: Path) -> None:
    kernel, bias = jax.random.normal(jax.random.key(0), (6, 2)), jax.numpy.arange(2.0)
    save(tmp_path / "saved", {"params": {"kernel": kernel, "bias": bias}})
    found = as_torch(restore(tmp_path / "saved"))["params"]
    layer = torch.nn.Linear(6, 2, device="xla")
    layer.load_state_dict({"weight": found["kernel"].T, "bias": found["bias"]})
    given = torch.randn(3, 6)
    wanted = given.numpy() @ np.asarray(kernel) + np.asarray(bias)
    torch.testing.assert_close(layer(given.to("xla")).cpu(), torch.from_numpy(wanted), rtol=1e-5, atol=1e-5)
    xla_serialization.save(layer.state_dict(), tmp_path / "ours")
    assert torch.equal(xla_serialization.load(tmp_path / "ours")["weight"], torch.from_numpy(np.array(kernel).T.copy()))


DTYPES = "float32 float64 bfloat16 float16 int64 int32 uint8 bool complex64"


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES.split()])
def test_every_dtype_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    value = (torch.arange(12) % 5 - 2).to(dtype).reshape(3, 4)
    for name, saved in {"many": value, "one": value[1, 2]}.items():
        save(tmp_path / name, as_jax({"value": saved.to("xla")}))
        found = as_torch(restore(tmp_path / name))["value"]
        assert found.dtype is dtype and torch.equal(found.cpu(), saved), name


def test_an_orbax_folder_is_named_in_our_error(tmp_path: Path) -> None:
    save(tmp_path / "saved", {"value": np.ones(3)})
    with pytest.raises(MissingCheckpointError, match="orbax wrote it"):
        xla_serialization.load(tmp_path / "saved")


def test_shards_are_written_where_they_are_and_read_onto_another_mesh(run_program: Run) -> None:
    report = run_program("orbax_sharded", CPU_NUM_DEVICES="8")
    assert report == {"shapes": [[4, 4], [4, 8], [4, 8]], "equal": True}

"""Saving and loading marked modules, and hooks of their state dicts, after `marking_cases` has entered SPMD mode."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import torch

import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.utils.serialization as xser
from harness import MESH, case, far, stored, text


def model() -> torch.nn.Sequential:
    """Two layers, the second of which the mesh does not divide evenly."""
    torch.manual_seed(8)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 6)).to("xla")
    for layer in net:
        xs.mark_sharding(layer.weight, MESH, ("x", "y"))
    return net


def seen(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Texts of shardings and what the first device holds."""
    return {name: [text(t), stored(t)] for name, t in state.items() if name.endswith("weight")}


@case
def files() -> dict[str, Any]:
    net = model()
    state = net.state_dict()
    values = {name: t.cpu() for name, t in state.items()}
    found: dict[str, Any] = {"before": seen(state)}
    with tempfile.TemporaryDirectory() as folder:
        for name, save, load in [
            ("xm.save", xm.save, lambda path: torch.load(path, weights_only=True)),
            ("xser", xser.save, xser.load),
            ("torch.save", torch.save, lambda path: torch.load(path, weights_only=True, map_location="cpu")),
        ]:
            path = str(Path(folder) / name)
            save(state, path)
            other = model()
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.zero_()
            other.load_state_dict(load(path))
            error = max(far(t, values[key]) for key, t in other.state_dict().items())
            found[name] = [seen(state) == found["before"], seen(other.state_dict()) == found["before"], error]
    return found


@case
def hooks() -> dict[str, Any]:
    net, calls = model(), []
    net.register_state_dict_pre_hook(lambda module, prefix, keep_vars: calls.append("before saving"))
    net.register_state_dict_post_hook(lambda module, state, prefix, metadata: calls.append(["saved", seen(state)]))
    net.register_load_state_dict_pre_hook(lambda module, state, *_: calls.append(["loading", sorted(state)]))
    net.register_load_state_dict_post_hook(lambda module, keys: calls.append(["loaded", seen(dict(module.named_parameters()))]))

    def renamed(module: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        state["copy.weight"] = state["0.weight"].clone()
        state["on the host"] = state["0.weight"].cpu()

    net.register_state_dict_post_hook(renamed)
    state = net.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    net.load_state_dict(torch.load(file, weights_only=True), strict=False)
    return {"calls": calls, "copy": text(state["copy.weight"]), "values": far(state["copy.weight"], state["on the host"])}

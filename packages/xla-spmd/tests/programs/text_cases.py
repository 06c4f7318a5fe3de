"""What the text of programs and pictures show of shardings, after `marking_cases` has entered SPMD mode."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch

import torch_xla
import torch_xla._XLAC
import torch_xla.distributed.spmd as xs
from harness import MESH, case, ramp, text


def hlo(*tensors: torch.Tensor) -> list[str]:
    """The lines of the program that computes these."""
    found: str = torch_xla._XLAC._get_xla_tensors_hlo([xs.unwrap_sharded_tensor(t) for t in tensors])
    return found.splitlines()


@case
def shardings() -> dict[str, Any]:
    x, w, whole = ramp(8, 8), ramp(8, 8), ramp(8, 8)
    xs.mark_sharding(x, MESH, ("x", None))
    xs.mark_sharding(w, MESH, (None, "y"))
    xs.mark_sharding(whole, MESH, (None, None))
    inner = x @ w
    xs.mark_sharding(inner, MESH, ("x", "y"))
    result = inner + whole
    xs.mark_sharding(result, MESH, ("y", "x"))
    lines = hlo(result)
    return {
        "parameters": [line for line in lines if " parameter(" in line],
        "marked": [line for line in lines if 'custom_call_target="Sharding"' in line],
        "result": [line for line in lines if "ROOT" in line],
    }


@case
def barrier() -> dict[str, Any]:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).to("xla")
    plain = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).to("xla")
    plain.load_state_dict(net.state_dict())
    for layer in net:
        xs.apply_backward_optimization_barrier(layer)
    counts, gradients = [], []
    for module in (plain, net):
        x = ramp(4, 8).requires_grad_()
        module(x).square().sum().backward()
        counts.append(sum("opt-barrier(" in line for line in hlo(x.grad, *[p.grad for p in module.parameters()])))
        gradients.append([x.grad.cpu(), *[p.grad.cpu() for p in module.parameters()]])
    return {"barriers": counts, "same": all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))}


@case
def manual() -> dict[str, Any]:
    pending = ramp(8, 8) + 1
    marked = xs._mark_manual_sharding(pending)
    wrapper = xs.mark_sharding(ramp(8, 8) * 2, MESH, (None, None))
    again = xs._mark_manual_sharding(wrapper)
    return {
        "kinds": [isinstance(one, xs.XLAShardedTensor) for one in (marked, again)],
        "texts": [text(marked.global_tensor), text(again.global_tensor), again.sharding_spec],
        "same": [again is wrapper, xs._mark_manual_sharding is xs.xla_sharding._mark_manual_sharding],
        "values": [marked.sum().item(), again.max().item()],
    }


@case
def pictures() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, shape, spec in [
        ("replicated", (8, 8), (None, None)),
        ("rows", (8, 8), ("x", None)),
        ("both", (8, 8), ("x", "y")),
        ("turned", (8, 8), ("y", "x")),
        ("one dimension", (8,), (("x", "y"),)),
        ("uneven", (10, 7), ("x", "y")),
        ("several dimensions, two split", (4, 1, 8), ("x", None, "y")),
    ]:
        t = xs.mark_sharding(torch.zeros(shape).to("xla"), MESH, spec)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            xs.debugging.visualize_tensor_sharding(t, use_color=False, scale=0.2, max_width=200, min_width=28)
        found[name] = [[cell.strip() for cell in line.strip("│\n ").split("│")] for line in out.getvalue().splitlines() if "CPU" in line]
    return found

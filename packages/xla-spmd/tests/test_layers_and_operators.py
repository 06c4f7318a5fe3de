"""Linear layers, other ways to mark, and what torch.compile traces, over eight devices; compared with torch on the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

_PROGRAM = """
import json
import torch
import torch_xla
import torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
from torch_xla import _XLAC
from torch_xla.distributed.spmd import xla_sharding
from xla_core import abi

found = {}
xr.use_spmd()
mesh = xs.Mesh(range(8), (4, 2), ("x", "y"))
torch.manual_seed(0)
text = lambda t: _XLAC._get_xla_sharding_spec(t)
far = lambda t, expected: (t.detach().cpu() - expected).abs().max().item()
dims = lambda t: list(abi.tensors.buffer_of(xs.unwrap_sharded_tensor(t)).addressable_shards[0].data.shape)

def why(action, *args, **kwargs):
    try:
        action(*args, **kwargs)
    except Exception as error:
        return [type(error).__mro__[2].__name__, str(error)]

# linear layers
for shape in [(4,), (8, 4), (8, 6, 2, 4), (0, 4)]:
    for bias in (True, False):
        layer, x = torch.nn.Linear(4, 3, bias=bias), torch.randn(shape, requires_grad=True)
        layer(x).sin().sum().backward()
        twin, mine = torch.nn.Linear(4, 3, bias=bias).to("xla"), x.detach().to("xla").requires_grad_()
        twin.load_state_dict(layer.state_dict())
        result = xs.xla_patched_nn_linear_forward(twin, mine)
        result.sin().sum().backward()
        pairs = [(result, layer(x)), (mine.grad, x.grad), *[(a.grad, b.grad) for a, b in zip(twin.parameters(), layer.parameters())]]
        found[f"linear {shape} {bias}"] = max(far(a, b.detach()) / max(1, b.abs().max().item()) if b.numel() else 0.0 for a, b in pairs)

asked = []
class Spy(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "einsum_linear_backward" in str(func):
            asked.append(list(args[3]))
        return func(*args, **(kwargs or {}))
layer = torch.nn.Linear(4, 3)
for wanted in [(True, False, False), (False, True, True), (False, False, True)]:
    x = torch.randn(5, 4, requires_grad=wanted[0])
    layer.weight.requires_grad_(wanted[1])
    layer.bias.requires_grad_(wanted[2])
    result = xs.XLAPatchedLinear.apply(x, layer.weight, layer.bias)
    with Spy():
        result.sum().backward()
found["asked"] = asked

layer = xla_sharding.EinsumLinear(4, 6).to("xla")
wide = xs.mark_sharding(torch.randn(8, 4, 4).to("xla").requires_grad_(), mesh, ("x", "y", None))
result = layer(wide)
grads = torch.autograd.grad(result.sin().sum(), [wide, layer.weight])
found["texts"] = [_XLAC._get_xla_tensors_hlo([xs.unwrap_sharded_tensor(t)]) for t in (result, *grads)]
found["flattened"] = _XLAC._get_xla_tensors_hlo([torch.einsum("...n,mn->...m", xs.unwrap_sharded_tensor(wide), layer.weight)])
found["result of sharded"] = dims(result)

with torch.autocast("xla", dtype=torch.bfloat16):
    low = layer(torch.ones(2, 4, device="xla"))
low.float().sum().backward()
found["autocast"] = [str(low.dtype), str(layer.weight.grad.dtype)]

net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.nn.MultiheadAttention(4, 2))
before, linears = list(net.parameters()), [net[0], net[1][0]]
same = xla_sharding.apply_xla_patch_to_nn_linear(net)
found["patched"] = [same is net, all(a is b for a, b in zip(before, net.parameters())), net[0] is linears[0]]
found["classes"] = [type(layer).__name__ for layer in net.modules() if isinstance(layer, torch.nn.Linear)]

# barrier
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
x = torch.randn(3, 4)
net(x).square().sum().backward()
expected = [p.grad.clone() for p in net.parameters()]
net.zero_grad()
net.to("xla")
xs.apply_backward_optimization_barrier(net[2])
net(x.to("xla")).square().sum().backward()
found["barriers"] = _XLAC._get_stablehlo([p.grad for p in net.parameters()]).count("optimization_barrier")
found["behind barriers"] = max(far(p.grad, e) for p, e in zip(net.parameters(), expected))

# other ways to mark
x = torch.randn(8, 4).to("xla").requires_grad_()
seen = []
marked = xs.mark_sharding_with_gradients(x, mesh, ("x", None))
middle = x * 2
again = xla_sharding.MarkShardingFunction.apply(middle, mesh, ("x", "y"))
middle.register_hook(lambda grad: seen.append(text(grad)))
(marked.sin() + again).sum().backward()
found["with gradients"] = [text(x), text(marked), text(again), seen, text(middle), dims(marked), dims(again)]
found["with gradients, value"] = far(x.grad, x.detach().cpu().cos() + 2)

t = xs.mark_sharding(torch.arange(32.0).reshape(8, 4).to("xla"), mesh, ("x", None)).global_tensor
custom = xs.annotate_custom_sharding(t, mesh, (None, "y"))
xs.annotate_custom_sharding(t, mesh, ("y", "x"))
pending = t + 1
xs.annotate_custom_sharding(pending, mesh, ("x", "y"))
found["custom"] = [text(t), type(custom).__name__, text(pending), far(t, torch.arange(32.0).reshape(8, 4)), dims(t), dims(pending)]
found["custom, view"] = far(t[2:4], torch.arange(8.0, 16).reshape(2, 4))

a, b = xs.mark_sharding(torch.randn(8, 4).to("xla"), mesh, ("y", "x")), torch.randn(8, 4).to("xla")
pair = xs.shard_as(b, a)
found["alike"] = [text(b), dims(b), [type(one).__name__ for one in pair], pair[1] is a]
found["not alike"] = [
    why(xs.shard_as, torch.zeros(4, device="xla"), torch.zeros(4, device="xla")),
    why(xs.shard_as, a, torch.zeros(4, device="xla")),
    why(xs.shard_as, a, xs.mark_sharding(torch.randn(8, 4).to("xla"), mesh, ("x", "y"))),
]

# torch.compile
def step(x, w):
    y = torch.exp(x @ w)
    xs.mark_sharding(y, mesh, ("x", "y"), use_dynamo_custom_op=True)
    return y.sum(), y

compiled = torch.compile(step, backend="openxla", fullgraph=True)
found["compiled"] = []
for _ in range(2):
    on_cpu = [torch.randn(8, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)]
    on_xla = [one.detach().to("xla").requires_grad_() for one in on_cpu]
    total, y = compiled(*on_xla)
    total.backward()
    expected = torch.exp(on_cpu[0] @ on_cpu[1])
    expected.sum().backward()
    errors = [far(mine.grad, theirs.grad) / theirs.grad.abs().max().item() for mine, theirs in zip(on_xla, on_cpu)]
    found["compiled"].append([text(y), dims(y), far(y, expected.detach()), max(errors)])
plain = torch.compile(lambda x: xs.mark_sharding(x, mesh, ("x", None), use_dynamo_custom_op=True) + 1, backend="openxla", fullgraph=True)
x = torch.zeros(8, 4).to("xla")
found["compiled input"] = [far(plain(x), torch.ones(8, 4)), dims(x)]
double = torch.compile(lambda x: (x * 2).sum(0), backend="openxla")
found["compiled, other layouts"] = []
for layout in [("x", None), ("x", "y"), (None, None), ("x", None)]:
    x = torch.randn(8, 4)
    on_mesh = x.to("xla")
    xs.mark_sharding(on_mesh, mesh, layout)
    found["compiled, other layouts"].append(far(double(on_mesh), x.sum(0) * 2))
x = torch.zeros(8, 4).to("xla")
outside = xs.mark_sharding(x, mesh, ("x", None), use_dynamo_custom_op=True)
found["outside"] = [type(outside).__name__, text(x)]
x = torch.ones(8, 4).to("xla")
same = torch.ops.xla.dynamo_mark_sharding(x, list(range(8)), [4, 2], "('x', 'y')", "('x', None)")
leaf = torch.ones(8, 4).to("xla").requires_grad_()
new = torch.ops.xla.aot_mark_sharding(leaf, str(mesh), "(None, 'y')")
(new * 3).sum().backward()
found["operators"] = [same is x, text(x), text(new), text(leaf), far(leaf.grad, torch.full((8, 4), 3.0)), dims(leaf.grad)]
found["no mesh"] = why(torch.ops.xla.aot_mark_sharding, x, "nonsense", "()")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def report(eight_devices: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any]
    found, _ = eight_devices("-c", _PROGRAM)
    return found


MERGED = r"f32\[(1,)?32,"  # of 8 x 4
ROWS = "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"
COLUMNS = "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"
BOTH = "{devices=[4,2]0,1,2,3,4,5,6,7}"
TURNED = "{devices=[2,4]0,2,4,6,1,3,5,7}"


def test_patched_linear_is_linear(report: dict[str, Any]) -> None:
    errors = {name: error for name, error in report.items() if name.startswith("linear ")}
    assert len(errors) == 8 and max(errors.values()) < 3e-6, errors
    assert report["autocast"] == ["torch.bfloat16", "torch.float32"]


def test_only_gradients_that_are_needed_are_computed(report: dict[str, Any]) -> None:
    assert report["asked"] == [[True, False, False], [False, True, True], [False, False, True]]


def test_leading_dimensions_stay_as_they_are(report: dict[str, Any]) -> None:
    for hlo in report["texts"]:
        assert "dot(" in hlo
        assert not re.search(MERGED, hlo), hlo
    assert re.search(MERGED, report["flattened"])
    assert report["result of sharded"] == [2, 2, 6]


def test_linears_are_patched_in_place(report: dict[str, Any]) -> None:
    assert report["patched"] == [True, True, True]
    assert report["classes"] == ["EinsumLinear", "EinsumLinear", "NonDynamicallyQuantizableLinear"]


def test_a_barrier_changes_no_gradient(report: dict[str, Any]) -> None:
    assert report["barriers"] >= 1
    assert report["behind barriers"] < 1e-5


def test_gradients_are_sharded_as_their_tensors(report: dict[str, Any]) -> None:
    assert report["with gradients"] == ["", ROWS, BOTH, [BOTH], "", [2, 4], [2, 2]]
    assert report["with gradients, value"] < 1e-5


def test_custom_annotations_leave_what_was_said(report: dict[str, Any]) -> None:
    assert report["custom"] == [ROWS, "XLAShardedTensor", "", 0.0, [2, 4], [2, 2]]
    assert report["custom, view"] == 0.0


def test_two_tensors_are_sharded_alike(report: dict[str, Any]) -> None:
    assert report["alike"] == [TURNED, [4, 1], ["XLAShardedTensor", "XLAShardedTensor"], True]
    kinds, texts = zip(*report["not alike"], strict=True)
    assert kinds == ("RuntimeError",) * 3
    assert "neither of these has a sharding" in texts[0] and "one shape" in texts[1] and TURNED in texts[2] and BOTH in texts[2]


def test_compiled_functions_mark(report: dict[str, Any]) -> None:
    for text, shard, error, gradient_error in report["compiled"]:
        assert (text, shard) == (BOTH, [2, 2])
        assert error < 1e-3 and gradient_error < 1e-5
    assert report["compiled input"] == [0.0, [2, 4]]
    assert max(report["compiled, other layouts"]) < 1e-5


def test_the_operators_by_themselves(report: dict[str, Any]) -> None:
    assert report["outside"] == ["XLAShardedTensor", ROWS]
    assert report["operators"] == [True, ROWS, COLUMNS, "", 0.0, [8, 2]]
    assert "nonsense" in report["no mesh"][1]

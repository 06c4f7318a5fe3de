"""Wrappers of tensors, after `marking_cases` has entered SPMD mode."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch

import torch_xla.distributed.spmd as xs
from harness import MESH, case, far, ramp, text, why, wrapped


def marked(*shape: int) -> xs.XLAShardedTensor:
    return xs.mark_sharding(ramp(*shape), MESH, (0, 1))


@case
def what_a_wrapper_is() -> dict[str, Any]:
    w = marked(8, 8)
    plain = w.global_tensor
    return {
        "type": [isinstance(w, torch.Tensor), type(w).__name__, w.is_xla],
        "as its tensor": [(w.shape, w.dtype, w.device) == (plain.shape, plain.dtype, plain.device), str(w.device)],
        "sharding": [w.sharding_spec, w.sharding_type.name, w.mesh_shape, w.partition_spec],
        "of none": [xs.XLAShardedTensor(ramp(2)).sharding_spec, xs.XLAShardedTensor(ramp(2)).sharding_type],
        "given": [xs.XLAShardedTensor(ramp(2), (8,), (0,)).mesh_shape, xs.XLAShardedTensor(ramp(2), (8,), (0,)).partition_spec],
        "repr": repr(w[0]),
        "gathered": [*wrapped(w.cpu()), w.cpu().device.type, far(w, torch.arange(64.0).reshape(8, 8)), w[1, 2].item(), w[0].tolist()],
        "cpu": [why(xs.XLAShardedTensor, torch.ones(2)), why(xs.wrap_as_sharded_tensor, torch.ones(2, requires_grad=True))],
    }


@case
def wrapping() -> dict[str, Any]:
    w = marked(8, 8)
    plain, bare = w.global_tensor, ramp(2)
    others = [3, "text", None, torch.ones(2), bare]
    return {
        "wrap": [xs.wrap_as_sharded_tensor(w) is w, xs.wrap_as_sharded_tensor(bare).global_tensor is bare],
        "unwrap": [xs.unwrap_sharded_tensor(w) is plain, xs.unwrap_sharded_tensor(plain) is plain, xs.unwrap_sharded_tensor(3)],
        "wrap_if": [*wrapped(xs.wrap_if_sharded(plain)), xs.wrap_if_sharded(w) is w],
        "unchanged": [xs.wrap_if_sharded(x) is x for x in others],
        "parameter": wrapped(xs.wrap_if_sharded(torch.nn.Parameter(plain))),
        "cleared": [type(xs.clear_sharding(w)).__name__, xs.clear_sharding(w) is plain],
    }


@case
def operations() -> dict[str, Any]:
    w, plain = marked(8, 8), ramp(8, 8)
    x = torch.arange(64.0).reshape(8, 8)
    pairs = {
        "wrapper first": (w + plain, x + x),
        "plain first": (plain @ w, x @ x),
        "scalar first": (1 - w, 1 - x),
        "list": (torch.cat([plain, w]), torch.cat([x, x])),
        "view": (w.t()[2:], x.t()[2:]),
        "keyword": (torch.where(w > 3, input=w, other=plain.neg()), torch.where(x > 3, x, -x)),
    }
    values, places = torch.max(w, 0)
    return {
        "wrapped": wrapped(*(mine for mine, _ in pairs.values()), values, places, *w.unbind(), *w.split(4)),
        "wrong": [name for name, (mine, theirs) in pairs.items() if far(mine, theirs) != 0],
        "several": [values.tolist() == x.max(0).values.tolist(), places.tolist() == x.max(0).indices.tolist()],
        "cpu": [why(lambda: w + x), why(lambda: x + w)],
    }


@case
def in_place() -> dict[str, Any]:
    w, out, target = marked(8, 8), marked(8, 8), ramp(8, 8)
    x = torch.arange(64.0).reshape(8, 8)
    view = w[0]
    found = {"same": [w.add_(1) is w, torch.mul(w, 2, out=out) is out, target.copy_(w) is target, view.zero_() is view]}
    found["plain target"] = wrapped(target)
    x += 1
    found["errors"] = [far(out, x * 2), far(target, x)]
    x[0] = 0
    found["errors"] += [far(w, x), far(w.global_tensor, x)]
    found["text"] = text(w)
    found["shapes"] = []
    changes: list[Callable[[Any], Any]] = [lambda t: t.t_(), lambda t: t.unsqueeze_(0), lambda t: t.resize_(4, 2), lambda t: t.squeeze_()]
    for change in changes:
        mine, theirs = xs.XLAShardedTensor(ramp(2, 4)), torch.arange(8.0).reshape(2, 4)
        change(theirs)
        found["shapes"].append([change(mine) is mine, mine.shape == theirs.shape, far(mine, theirs), far(mine * 2, theirs * 2)])
    return found


@case
def data() -> dict[str, Any]:
    w, plain = marked(8, 8), ramp(8, 8)
    w.data = torch.ones(2, 3, dtype=torch.int64, device="xla")
    plain.data = marked(4, 2)
    found = {
        "of a wrapper": [list(w.shape), str(w.dtype), w.tolist(), list(w.global_tensor.shape)],
        "of a plain": far(plain, ramp(4, 2).cpu()),
    }
    net = torch.nn.Linear(8, 8)
    wanted = copy.deepcopy(net).to(torch.bfloat16).weight
    net.to("xla")
    net.weight = torch.nn.Parameter(xs.mark_sharding(net.weight.detach(), MESH, (0, 1)))
    net.to(torch.bfloat16)
    found["Module.to"] = [str(net.weight.dtype), far(net.weight, wanted), *wrapped(net.weight)]
    return found


@case
def gradients() -> dict[str, Any]:
    x = torch.randn(8, 8)
    x.requires_grad_()
    (x.tanh() * x).sum().backward()
    found: dict[str, Any] = {}
    leaf = torch.nn.Parameter(x.detach().to("xla"))
    w = xs.mark_sharding(leaf, MESH, (0, 1))
    (w.tanh() * w).sum().backward()
    found["parameter"] = [far(leaf.grad, x.grad), *wrapped(leaf.grad, w)]
    leaf.grad = None
    result = xs.mark_sharding(leaf * 2, MESH, (1, 0))
    (result.tanh() * leaf).sum().backward()
    y = x.detach().requires_grad_()
    ((y * 2).tanh() * y).sum().backward()
    found["pending"] = [far(leaf.grad, y.grad), result.grad_fn is not None]
    parameter = torch.nn.Parameter(marked(8, 8))
    optimizer = torch.optim.SGD([parameter], lr=0.5, momentum=0.9)
    expected = torch.nn.Parameter(torch.arange(64.0).reshape(8, 8))
    reference = torch.optim.SGD([expected], lr=0.5, momentum=0.9)
    for _ in range(2):
        parameter.square().sum().backward()
        expected.square().sum().backward()
        optimizer.step()
        reference.step()
    found["parameter of a wrapper"] = [
        isinstance(parameter, torch.nn.Parameter),
        *wrapped(parameter),
        parameter.is_leaf and parameter.requires_grad,
        far(parameter.grad, expected.grad),
        far(parameter, expected),
        text(parameter),
    ]
    with torch.no_grad():
        found["no_grad"] = [xs.wrap_as_sharded_tensor(leaf).requires_grad, (xs.wrap_as_sharded_tensor(leaf) * 2).requires_grad]
    return found


@case
def copies() -> dict[str, Any]:
    w = marked(8, 8)
    twin = copy.deepcopy(w)
    twin.add_(1)
    file = io.BytesIO()
    torch.save({"w": w, "p": torch.nn.Parameter(w.clone())}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    pickled = pickle.loads(pickle.dumps(w))
    x = torch.arange(64.0).reshape(8, 8)
    return {
        "deepcopy": [*wrapped(twin), text(twin), twin.mesh_shape, twin.partition_spec],
        "independent": [far(w, x), far(twin, x + 1), far(twin.global_tensor, x + 1)],
        "clone": [*wrapped(w.clone()), text(w.clone())],
        "pickle": [*wrapped(pickled), str(pickled.device), far(pickled, x)],
        "loaded": [str(loaded["w"].device), far(loaded["w"], x), isinstance(loaded["p"], torch.nn.Parameter), far(loaded["p"], x)],
    }

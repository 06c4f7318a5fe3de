"""The whole idea of xla-core in one file: lazy tensors on stock PyTorch, compiled by XLA through jax.

Run it: `python docs/internals/mini.py`. It leaves out what makes the real thing useful (views, in-place writes, autograd devices,
partial reads, changing scalars, a cache on disk, most operators); `tour.md` says where each of those lives.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax
import torch
from jax import lax

# 1. The op table: how each aten overload is written for XLA.
LOWERINGS: dict[Any, Callable[..., jax.Array]] = {
    torch.ops.aten.add.Tensor: lambda x, y: lax.add(x, y),
    torch.ops.aten.mul.Tensor: lambda x, y: lax.mul(x, y),
    torch.ops.aten.mm.default: lambda x, y: lax.dot(x, y, precision=lax.Precision.HIGHEST),
    torch.ops.aten.relu.default: lambda x: lax.max(x, lax.full_like(x, 0)),
    torch.ops.aten.tanh.default: lambda x: lax.tanh(x),
}


# 2. The pending graph: what was recorded and has not run. An entry is a shape (a leaf) or (operation, operand slots).
class Value:
    """A result: pending at a slot of the pending graph, or a buffer."""

    def __init__(self, slot: int, buffer: jax.Array | None = None) -> None:
        self.slot = slot
        self.buffer = buffer
        self.pending_graph: list[Any] | None = None


class PendingGraph:
    """Entries by slot, buffers of the leaves, and weak references to the values that are still wanted."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.leaves: list[jax.Array] = []
        self.refs: list[weakref.ref[Value]] = []

    def slot_of(self, value: Value) -> int:
        """Where `value` stands here; one from before enters as a leaf."""
        if value.pending_graph is not self.entries:
            buffer = value.buffer
            if buffer is None:
                raise RuntimeError("a pending value of an older pending graph")
            self.leaves.append(buffer)
            self.put((tuple(buffer.shape), str(buffer.dtype)), value)
        return value.slot

    def put(self, entry: Any, value: Value) -> Value:
        """Append an entry whose result is `value`."""
        value.slot, value.pending_graph = len(self.entries), self.entries
        self.entries.append(entry)
        self.refs.append(weakref.ref(value))
        return value


PENDING = PendingGraph()
PROGRAMS: dict[Any, Any] = {}


# 3. The tensor: torch sees shape, dtype and device; every operation on it arrives in __torch_dispatch__.
class LazyTensor(torch.Tensor):
    """A tensor whose data is a Value."""

    value: Value
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Shapes come from running the operation on meta tensors. (The real thing does so once for each signature.)
        metas = [torch.empty(arg.shape, dtype=arg.dtype, device="meta") for arg in args]
        shape = func(*metas).shape
        entry = (func, *[PENDING.slot_of(arg.value) for arg in args])
        return wrap(PENDING.put(entry, Value(-1)), shape)


def wrap(value: Value, shape: Any) -> LazyTensor:
    """A torch tensor in front of `value`."""
    tensor: LazyTensor = torch.Tensor._make_wrapper_subclass(LazyTensor, shape, dtype=torch.float32, device="meta")
    tensor.value = value
    return tensor


def upload(tensor: torch.Tensor) -> LazyTensor:
    """A lazy tensor with a copy of a CPU tensor's values."""
    return wrap(Value(-1, jax.device_put(tensor.numpy().copy())), tensor.shape)


# 4. The sync: one program for all that is live; its key is the pending graph itself.
def sync() -> None:
    """Run what is pending and give buffers to the values that somebody holds."""
    global PENDING
    pending_graph, PENDING = PENDING, PendingGraph()
    leaves = {slot for slot, entry in enumerate(pending_graph.entries) if isinstance(entry[0], tuple)}
    live = [value for slot, ref in enumerate(pending_graph.refs) if slot not in leaves and (value := ref()) is not None]
    outs = tuple(value.slot for value in live)
    key = (tuple(pending_graph.entries), outs)
    if key not in PROGRAMS:
        PROGRAMS[key] = jax.jit(emit(key[0], outs))
        print(f"compiling {len(pending_graph.entries) - len(leaves)} operations")
    for value, buffer in zip(live, PROGRAMS[key](*pending_graph.leaves), strict=True):
        value.buffer, value.pending_graph = buffer, None


def emit(entries: tuple[Any, ...], outs: tuple[int, ...]) -> Callable[..., list[jax.Array]]:
    """The function over jax arrays that `entries` describe."""

    def run(*leaves: jax.Array) -> list[jax.Array]:
        scalar = iter(leaves)
        env: list[jax.Array] = []
        for head, *operands in entries:
            env.append(LOWERINGS[head](*[env[slot] for slot in operands]) if head in LOWERINGS else next(scalar))
        return [env[slot] for slot in outs]

    return run


def read(tensor: LazyTensor) -> torch.Tensor:
    """A CPU copy."""
    if tensor.value.buffer is None:
        sync()
    return torch.from_dlpack(tensor.value.buffer).clone()


if __name__ == "__main__":
    torch.manual_seed(0)
    x, w1, w2 = torch.randn(8, 4), torch.randn(4, 16), torch.randn(16, 2)
    lazy_x, lazy_w1, lazy_w2 = upload(x), upload(w1), upload(w2)
    for _ in range(3):
        y = torch.tanh(torch.relu(lazy_x @ lazy_w1) @ lazy_w2)  # recorded, not run
        sync()  # compiled the first time, then found in PROGRAMS
    torch.testing.assert_close(read(y), torch.tanh(torch.relu(x @ w1) @ w2))
    print(f"3 steps, {len(PROGRAMS)} program, the same values as torch on the CPU")

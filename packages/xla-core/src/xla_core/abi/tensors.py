"""Between tensors of device `xla` and what is behind them: pending operations, device buffers, memory of the host.

A tensor shows a value. It is pending, recorded and not computed, or it has a buffer, a jax array that may still be being computed. Several
tensors may show one value: views, aliases, parameters.

    >>> import numpy as np
    >>> import torch
    >>> import torch_xla
    >>> from xla_core.abi.tensors import alias_key, buffer_of, is_pending, materialize, tensor_from_buffer
    >>> x = torch.ones(3, device="xla") * 2
    >>> is_pending(x)
    True
    >>> materialize([x])  # computes it and reads nothing
    >>> is_pending(x), np.asarray(buffer_of(x)).tolist()
    (False, [2.0, 2.0, 2.0])
    >>> tensor_from_buffer(buffer_of(x) + 1).tolist()
    [3.0, 3.0, 3.0]

* `buffer_of` computes what a tensor shows, if need be, and gives the buffer away: no program overwrites it from then on, whatever is
  written to the tensor. `tensor_from_buffer` is a tensor over a buffer, without a copy.
* `tensor_from_host` takes a CPU tensor that its owner gives away, without a copy where the device can use the host's memory.
* `materialize` computes many tensors, each device in one execution. `sync` is a step of the user's, as `torch_xla.sync`.
* `to_cpu` gives a nesting of containers with CPU tensors in place of the tensors on the device, from one execution; tensors that show the
  same data share memory there, too. With `convert=False` they are computed only, as replicas need that write nothing.
* `is_pending` asks, and runs nothing.
* `alias_key` is equal for tensors that show the same elements of the same data, as tied weights do.
* `XLATensor` is the tensor of the device. What torch's own types hide, `nn.Parameter` and subclasses of the user's, `tensor_behind`
  gives: the tensor itself, the one behind it, or None where the device has no part in it.

Guarantees: nothing here waits for the device, but what reads values on the host, or is told to. Dtypes that the device holds as others keep
their torch dtype in the tensor, and `tensor_from_buffer` checks that the two fit. Tensors on other devices raise DeviceMismatchError
(a RuntimeError), values that a failed execution should have computed ExecutionError.
"""

from __future__ import annotations

from xla_core.api.conversion import maybe_convert_to_cpu as to_cpu
from xla_core.engine.tensor.interop import alias_key, buffer_of, is_pending, materialize, sync, tensor_from_buffer, tensor_from_host
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.tensor import XLATensor

__all__ = [
    "XLATensor",
    "alias_key",
    "buffer_of",
    "is_pending",
    "materialize",
    "sync",
    "tensor_behind",
    "tensor_from_buffer",
    "tensor_from_host",
    "to_cpu",
]

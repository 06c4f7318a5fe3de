"""Views: what a tensor shows of the data that it shares with others.

    >>> import torch
    >>> import torch_xla
    >>> from xla_core.abi.views import storage_key, view_function
    >>> weight = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], device="xla")
    >>> shown = weight.t()
    >>> storage_key(shown) == storage_key(weight)
    True
    >>> transposed = view_function(shown)
    >>> transposed(weight * 10).tolist()
    [[0.0, 30.0], [10.0, 40.0], [20.0, 50.0]]

* `storage_key` is equal for tensors, alive at the same time, that share data: a tensor, its views, its detached forms.
* `view_function` is how a tensor shows its data, for other data of the same shape and dtype. So what is saved for later, as autograd saves
  weights, can be given up and shown again when its data is back. Strides do not say it: tensors of the device report contiguous ones.
* A class derived from `XLATensor`, such as a wrapper that tells how its tensor is sharded, is made by `wrap_like`: it shows the data of an
  xla tensor. `shows_same` tells whether it still does after something was written in place.

Guarantees: nothing is recorded here but what reads the views later.
"""

from __future__ import annotations

from xla_core.engine.tensor.interop import storage_key, view_function
from xla_core.engine.tensor.tensor import shows_same, wrap_like

__all__ = ["shows_same", "storage_key", "view_function", "wrap_like"]

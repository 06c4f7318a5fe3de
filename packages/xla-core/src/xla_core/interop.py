"""Both ways between torch and JAX: torch modules as JAX functions, JAX functions on xla tensors, JAX's transforms over torch code.

    >>> import jax
    >>> import torch
    >>> import torch_xla
    >>> from xla_core import interop
    >>> model = torch.nn.Linear(2, 1, bias=False, device="xla")
    >>> apply, parameters, buffers = interop.to_jax(model)
    >>> inputs = jax.numpy.ones((3, 2))
    >>> def loss(parameters):
    ...     result, _ = apply(parameters, buffers, inputs)
    ...     return result.sum()
    >>> jax.jit(jax.grad(loss))(parameters)["weight"].tolist()
    [[3.0, 3.0]]

* `to_jax` makes a pure function of a module or function; what it takes and gives are jax arrays, so that all of JAX's transforms, and
  libraries such as optax, work on it. A module gives a `JaxModule`: the function, its parameters and its buffers, without a copy.
* `to_torch` makes a function of xla tensors of a JAX function, one with a `jax.custom_vjp` too; `call_jax` calls one once. Both keep what
  they traced. torch's autograd differentiates them with the gradients that JAX gives, and so do the transforms of `torch.func`.
* `remat` computes a torch function's intermediate values again for its gradient; policies of JAX say by name which are saved, and values
  that got a `checkpoint_name` are saved or offloaded to the host.

Guarantees: nothing is copied between tensors and arrays, and the torch code of `to_jax` runs once for each signature. What cannot be one
program (a read of a value, a size that depends on data, a write to an argument) raises with the user's line. `tensors.tensor_from_buffer`
refuses an array that JAX is tracing.
"""

from __future__ import annotations

from xla_core.engine.tensor.jax_call import call_jax
from xla_core.features.control_flow.pure import j2t_autograd as to_torch
from xla_core.features.interop.remat import checkpoint_name, remat
from xla_core.features.interop.to_jax import JaxModule, to_jax

__all__ = ["JaxModule", "call_jax", "checkpoint_name", "remat", "to_jax", "to_torch"]

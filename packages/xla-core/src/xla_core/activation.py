"""Makes this process's torch know device `xla`; runs once, when xla_core is imported by torch_xla or the ABI."""

from __future__ import annotations

from functools import cache

from xla_core.api import device_plugins
from xla_core.base.private_jax import free_jax_garbage_in_c
from xla_core.engine.runtime import ending
from xla_core.engine.tensor import autocast, device, dlpack, loading, optim, plain
from xla_core.features.control_flow import higher_order
from xla_core.features.dynamo import backend
from xla_core.features.torch_functions import accelerator_graph, attention, batch_norm, ctc, linear, one_hot, solve
from xla_core.ops import families


@cache
def activate() -> None:
    """Register all lowerings and the device. Starts no client, prints nothing, changes no setting."""
    families.load()
    device.register()
    plain.register(device.serve_plain_tensors)
    dlpack.register()
    autocast.register()
    optim.register()
    loading.register()
    for function in (accelerator_graph, attention, batch_norm, ctc, linear, one_hot, solve):
        function.register()
    backend.register()
    higher_order.register()
    ending.register()
    device_plugins.register()
    free_jax_garbage_in_c()

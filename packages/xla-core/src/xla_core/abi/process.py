"""This process and its devices.

    >>> from xla_core.abi.process import client, device_kind, started
    >>> started(), device_kind()  # asks, and starts nothing
    (False, 'CPU')
    >>> running = client()  # starts the devices
    >>> started(), running.kind, len(running.devices)
    (True, 'CPU', 1)

* `client` is the PJRT client (`Client`) with this process's devices, started at the first call. `started` asks, and starts nothing;
  `before_start` is for what has to happen first, such as joining a job; `device_kind` is the kind of hardware, chosen by `PJRT_DEVICE`.
* `order_devices` sets, in SPMD mode, the order of the job's devices over which programs run, before anything is sharded.
* `XlaError` is the base of all errors that these packages raise on purpose; each is a builtin error too, such as RuntimeError.

Guarantees: importing torch_xla, or this, starts no device and no thread and touches no network. The client is started once, in the thread
that asks first; a process that was forked from one with a running client gets an error that says what to do instead.
"""

from __future__ import annotations

from xla_core.base.errors import XlaError
from xla_core.engine.runtime.client import before_start, device_kind, started
from xla_core.engine.runtime.client_view import ClientView as Client
from xla_core.engine.runtime.client_view import view as client
from xla_core.engine.tensor.sharding import order_devices

__all__ = ["Client", "XlaError", "before_start", "client", "device_kind", "order_devices", "started"]

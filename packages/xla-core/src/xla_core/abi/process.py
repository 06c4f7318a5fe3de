"""This process: its devices, its settings, and its place among the processes of a job.

    >>> from xla_core.abi.process import Setting, client, started, topology
    >>> topology().process_count  # nobody said that there are others
    1
    >>> running = client()  # starts the devices
    >>> started(), len(running.devices) == len(running.recorders)
    (True, True)
    >>> Setting("MY_PACKAGE_ROWS", 10, "How many rows are shown.", int, "an integer").get()
    10

* `client` is the PJRT client (`Client`) with this process's devices, started at the first call. `started` asks, and starts nothing;
  `before_start` is for what has to happen first, such as joining a job; `tpu_device_count` counts the devices that this
  host's environment shows, likewise without starting anything.
* `Topology` is a process's place in a job: which of how many, over the job and on this host, replica or SPMD. A launcher says so by
  `set_topology`, before the devices start; all else asks `topology`. `order_devices` sets, in SPMD mode, the order of the
  job's devices over which programs run, before anything is sharded.
* `Setting` is an environment variable with its default, type and explanation: parsed at use, with an error that names the variable.
  A package offers its own by the entry point `xla_core.settings`; `installed_settings` lists those of all packages.
* `XlaError` is the base of all errors that these packages raise on purpose; each is a builtin error too, such as RuntimeError.

Guarantees: importing torch_xla, or this, starts no device and no thread and touches no network. The client is started once, in the thread
that asks first; a process that was forked from one with a running client gets an error that says what to do instead.
"""

from __future__ import annotations

from xla_core.api.tpu.host import num_available_devices as tpu_device_count
from xla_core.base.config import Setting, installed_settings
from xla_core.base.errors import XlaError
from xla_core.engine.runtime.client import Client, before_start, client, started
from xla_core.engine.runtime.topology import Topology, set_topology, topology
from xla_core.engine.tensor.sharding import order_devices

__all__ = [
    "Client",
    "Setting",
    "Topology",
    "XlaError",
    "before_start",
    "client",
    "installed_settings",
    "order_devices",
    "set_topology",
    "started",
    "topology",
    "tpu_device_count",
]

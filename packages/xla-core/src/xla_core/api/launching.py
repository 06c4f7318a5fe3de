"""Start the replicas of a job: `torch_xla.launch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xla_core.api import plugins
from xla_core.api.job import addressable_device_count, is_spmd
from xla_core.api.user_modules import xr
from xla_core.base.budgets import budget
from xla_core.base.installation import DISTRIBUTED


@budget(compiles=None, reads=None)
def launch(fn: Callable[..., Any], args: tuple[Any, ...] = (), start_method: str = "spawn", debug_single_process: bool = False) -> None:
    """Run `fn(index, *args)` as each replica: in this process if it is one of a job's already, else in a new one for each device.

    debug_single_process: call it once, in this process. One device needs no other package, several need xla-distributed.
    Raises NotImplementedError in SPMD mode.
    """
    if is_spmd():
        raise NotImplementedError("torch_xla.launch starts replicas, SPMD mode has one: call the function directly")
    launcher = plugins.launcher()
    if launcher is not None:
        launcher.launch(fn, args, start_method, debug_single_process)
    elif debug_single_process or xr(addressable_device_count)() == 1:
        fn(0, *args)
    else:
        raise plugins.missing("torch_xla.launch", DISTRIBUTED)

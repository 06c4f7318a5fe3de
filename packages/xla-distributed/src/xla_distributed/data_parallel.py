"""One model on several devices of one process, each driven by a thread."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

import torch_xla.core.xla_model as xm
from xla_distributed.job.thread_replicas import check_single_process, run_on_devices
from xla_distributed.loader import ParallelLoader

Network = torch.nn.Module | Callable[[], torch.nn.Module]
Loop = Callable[[torch.nn.Module, Any, torch.device, "Context"], Any]


class Context:
    """State that a loop keeps from call to call, as attributes; one for each device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def getattr_or(self, name: str, default: Any) -> Any:
        """The attribute `name`; if it is missing or None it first becomes `default`, or what that returns if it can be called."""
        if getattr(self, name, None) is None:
            setattr(self, name, default() if callable(default) else default)
        return getattr(self, name)


class DataParallel:
    """Runs a loop over a loader's batches on several devices at once: a thread for each, with a copy of the network.

    network: a module, or a function that makes one. device_ids: xla devices; None: all of this process; empty: none, so that the
    loop runs on the CPU, in the caller's thread. kwargs: as for ParallelLoader.
    Among several devices the threads are replicas: `xm.optimizer_step` takes the mean of their gradients, collectives work.
    Raises ValueError for devices that are not xla or named twice, JobError for several devices in one process of a job.
    """

    def __init__(self, network: Network, device_ids: Sequence[torch.device | str | int] | None = None, **kwargs: Any) -> None:
        chosen = xm.get_xla_supported_devices() or [] if device_ids is None else device_ids
        devices = [torch.device("xla", device) if isinstance(device, int) else torch.empty(0, device=device).device for device in chosen]
        if len(set(devices)) != len(devices) or any(device.type != "xla" for device in devices):
            raise ValueError(f"device_ids are xla devices, each named once, got {list(map(str, chosen))}")
        check_single_process(devices)
        module = network if isinstance(network, torch.nn.Module) else network()
        self._devices = devices
        self._models = [copy.deepcopy(module).to(device) for device in devices] or [module]
        self._contexts = [Context(device) for device in devices or [torch.device("cpu")]]
        self._kwargs = kwargs

    @property
    def devices(self) -> list[str]:
        """The devices, such as `xla:0`; none if the loop runs on the CPU."""
        return [str(device) for device in self._devices]

    @property
    def models(self) -> list[torch.nn.Module]:
        """The copies of the network, in the order of the devices; without any, the network itself."""
        return self._models

    def __call__(self, loop_fn: Loop, loader: Iterable[Any], batchdim: int = 0, **kwargs: Any) -> list[Any]:
        """Call `loop_fn(model, device_loader, device, context)` for each device, once on the CPU if there is none; returns all results.

        Batch i goes to device i % devices; an incomplete last round is dropped. kwargs: as for ParallelLoader.
        Raises what a loop raises first; the others are stopped at their next batch or collective.
        """
        if not self._devices:
            return [loop_fn(self._models[0], loader, torch.device("cpu"), self._contexts[0])]
        batches = ParallelLoader(loader, self._devices, batchdim, **{**self._kwargs, **kwargs})

        def work(index: int) -> Any:
            device = self._devices[index]
            try:
                result = loop_fn(self._models[index], batches.per_device_loader(device), device, self._contexts[index])
            except BaseException:
                batches.close()
                raise
            batches.abandon(device)  # so that the others can go on
            return result

        try:
            return run_on_devices(self._devices, work)
        finally:  # Ctrl-C too ends the loops, at their next batch
            batches.close()

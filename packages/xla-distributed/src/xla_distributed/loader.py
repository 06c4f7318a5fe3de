"""Loaders that upload ahead while the device computes."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

import torch_xla.core.xla_model as xm
from xla_core.abi.events import Cause
from xla_core.abi.tensors import sync
from xla_distributed.device_prefetcher import DevicePrefetcher
from xla_distributed.errors import LoaderClosedError

Device = torch.device | str


def _upload_batch(batch: Any, device: torch.device, sharding: Any) -> Any:
    """Copy a nested batch, with its CPU tensors on a device."""
    if isinstance(sharding, Mapping):
        if not isinstance(batch, Mapping):
            raise ValueError(f"input_sharding is a dict, so batches must be dicts too, got {type(batch).__name__}")
        missing = [key for key in sharding if key not in batch]
        if missing:
            raise KeyError(f"input_sharding has {missing}, which a batch with {list(batch)} has not")
        return {key: _upload_batch(value, device, sharding.get(key)) for key, value in batch.items()}

    def send(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        sent: list[torch.Tensor] = xm.send_cpu_data_to_device(tensors, device, sharding)
        return sent

    def on_cpu(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "cpu"

    return xm.ToXlaTensorArena(send, on_cpu).transform(batch)


Pad = Callable[[Any], Any]


def _checked_padding(buckets: Pad | None) -> Pad:
    """What pads the batches of a loader. Raises TypeError for what cannot."""
    if buckets is not None and not callable(buckets):
        raise TypeError(f"buckets is a {type(buckets).__name__}, must pad batches: give torch_xla.shapes.Padding(buckets)")
    return _unchanged if buckets is None else buckets


def _unchanged(batch: Any) -> Any:
    return batch


def _sync_unless_traced(device: torch.device) -> None:
    # Not imported: it belongs to another wheel, and nobody traces unless it is loaded.
    profiler = sys.modules.get("torch_xla.debug.profiler")  # a StepTrace makes the step itself
    if profiler is None or not profiler.get_tracer_marked_step():
        sync(device, cause=Cause.LOADER)


class PerDeviceLoader:
    """The batches for one device. Each `next` first makes a step sync, every `batches_per_execution` batches."""

    def __init__(self, loader: ParallelLoader | _InlineLoader, device: torch.device) -> None:
        self._loader = loader
        self._device = device
        self._count = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def __next__(self) -> Any:
        """The next batch, on the device. Raises StopIteration after the last, and what the loader raised."""
        if self._count % self._loader.batches_per_execution == 0:
            _sync_unless_traced(self._device)
        item = self._loader.next_item(self._device)
        if item is None:
            # No further `next` ends the step of the last batch.
            _sync_unless_traced(self._device)
            raise StopIteration
        self._count += 1
        return item[0]

    next = __next__

    def close(self) -> None:
        """End the loader's threads."""
        self._loader.close()


class ParallelLoader:
    """Reads a loader in a thread and uploads ahead in others. Sample i goes to `devices[i % len(devices)]`.

    loader_prefetch_size, device_prefetch_size: batches read ahead, and uploaded ahead, for each device.
    host_to_device_transfer_threads: that upload to each device. input_sharding: a ShardingSpec for tensors of its rank, or a dict of
    them by key. buckets: pads each batch before it is uploaded, such as `torch_xla.shapes.Padding`. batchdim: accepted for compatibility.
    An incomplete last round over the devices is dropped.
    """

    def __init__(
        self,
        loader: Iterable[Any] | None = None,
        devices: Sequence[Device] = (),
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 8,
        device_prefetch_size: int = 4,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
        cpu_loader: Iterable[Any] | None = None,
        buckets: Pad | None = None,
    ) -> None:
        pad = _checked_padding(buckets)
        source = cpu_loader if loader is None else loader
        if source is None:
            raise TypeError("ParallelLoader needs a loader")
        for name, count in (
            ("batches_per_execution", batches_per_execution),
            ("loader_prefetch_size", loader_prefetch_size),
            ("device_prefetch_size", device_prefetch_size),
            ("host_to_device_transfer_threads", host_to_device_transfer_threads),
        ):
            if count < 1:
                raise ValueError(f"{name} is {count}, must be at least 1")
        if not devices:
            raise ValueError("ParallelLoader needs at least one device")
        self._cpu_loader: Any = source
        self._batches_per_execution = batches_per_execution
        # Devices with their indices, since `xla` does not equal `xla:0`.
        indexed = [torch.empty(0, device=device).device for device in devices]

        def prefetcher(device: torch.device) -> DevicePrefetcher:
            def upload(batch: Any) -> Any:
                return _upload_batch(pad(batch), device, input_sharding)

            return DevicePrefetcher(upload, loader_prefetch_size, device_prefetch_size, host_to_device_transfer_threads)

        self._prefetchers = {device: prefetcher(device) for device in indexed}
        # The thread holds no reference to this object, so that it closes once nobody uses it.
        threading.Thread(target=_read, args=(source, list(self._prefetchers.values())), name="xla-loader-read", daemon=True).start()

    @property
    def batches_per_execution(self) -> int:
        """Batches between two step syncs."""
        return self._batches_per_execution

    def per_device_loader(self, device: Device) -> PerDeviceLoader:
        """The batches for one of the devices."""
        indexed = torch.empty(0, device=device).device
        if indexed not in self._prefetchers:
            raise ValueError(f"{device} is none of this loader's devices {[str(known_device) for known_device in self._prefetchers]}")
        return PerDeviceLoader(self, indexed)

    def per_device_samples(self) -> int:
        """Batches for each device."""
        return len(self._cpu_loader) // len(self._prefetchers)

    def next_item(self, device: torch.device) -> tuple[Any] | None:
        """The next batch on a device, in a tuple; None after the last. Raises what reading or uploading it raised."""
        return self._prefetchers[device].get()

    def abandon(self, device: Device) -> None:
        """Read on for the other devices, though nobody takes the batches of this one any more."""
        self._prefetchers[torch.empty(0, device=device).device].abandon()

    def close(self) -> None:
        """End the threads, and drop the batches that were read ahead."""
        for prefetcher in self._prefetchers.values():
            prefetcher.close()
        for prefetcher in self._prefetchers.values():
            prefetcher.join()

    def __del__(self) -> None:
        # `__init__` may have raised before. No `join`: the garbage collector may run this in one of those very threads.
        for prefetcher in vars(self).get("_prefetchers", {}).values():
            prefetcher.close()


def _read(source: Iterable[Any], prefetchers: list[DevicePrefetcher]) -> None:
    """Distribute the batches of a loader over the devices, one full round at a time."""
    error: BaseException | None = None
    waiting: list[Any] = []
    try:
        for batch in source:
            waiting.append(batch)
            if len(waiting) == len(prefetchers):
                for prefetcher, item in zip(prefetchers, waiting, strict=True):
                    prefetcher.put(item)
                waiting = []
    except LoaderClosedError:
        return
    except BaseException as raised:  # raised to whoever takes the next batch
        error = raised
    for prefetcher in prefetchers:
        prefetcher.end(error)


class _InlineLoader:
    """Replaces a ParallelLoader of one device where the consumer's thread must read the loader: nothing is read ahead."""

    def __init__(
        self, loader: Any, batches_per_execution: int = 1, input_sharding: Any = None, buckets: Pad | None = None, **_: Any
    ) -> None:
        self.batches_per_execution = batches_per_execution
        self._pad = _checked_padding(buckets)
        self._sharding = input_sharding
        self._cpu_loader = loader
        self._source = iter(loader)

    def per_device_samples(self) -> int:
        """Batches of a pass."""
        return len(self._cpu_loader)

    def next_item(self, device: torch.device) -> tuple[Any] | None:
        """The next batch on the device, in a tuple; None after the last."""
        for batch in self._source:
            return (_upload_batch(self._pad(batch), device, self._sharding),)
        return None

    def close(self) -> None:
        """Do nothing: there are no threads."""


class MpDeviceLoader:
    """The batches of a loader on one device; each `iter` starts a new pass and ends the one before.

    kwargs: as for ParallelLoader. Attributes that this class has not are the loader's. A loader with `end_of_dataloader`, as those of
    accelerate, is not read ahead: programs ask it whether the batch that they have is the last. On the CPU batches come from the loader
    itself, padded by `buckets` as on any other device.
    """

    def __init__(self, loader: Any, device: Device, **kwargs: Any) -> None:
        self._loader = loader
        self._device = device
        self._parallel_loader_kwargs = kwargs
        _checked_padding(kwargs.get("buckets"))
        self._pass: weakref.ref[ParallelLoader] | None = None  # whoever iterates holds it

    def __iter__(self) -> Iterator[Any]:
        self.close()
        if torch.device(self._device).type == "cpu":
            pad = self._parallel_loader_kwargs.get("buckets")
            return iter(self._loader) if pad is None else map(pad, self._loader)
        if hasattr(self._loader, "end_of_dataloader"):
            return PerDeviceLoader(_InlineLoader(self._loader, **self._parallel_loader_kwargs), torch.empty(0, device=self._device).device)
        loader = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        self._pass = weakref.ref(loader)
        return loader.per_device_loader(self._device)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` ask objects that have no attributes yet: the look-up of `_loader` would not end.
        if name.startswith("__") or "_loader" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._loader, name)

    def close(self) -> None:
        """End the threads of the present pass."""
        loader = None if self._pass is None else self._pass()
        if loader is not None:
            loader.close()

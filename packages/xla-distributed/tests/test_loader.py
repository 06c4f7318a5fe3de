"""Loaders that upload ahead."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import forked_python
import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.distributed.parallel_loader as pl
from torch_xla.shapes import Buckets, Padding
from xla_core.abi.events import TransferEvent, subscribe
from xla_core.abi.metrics import counter


def marks() -> int:
    return counter("MarkStep")


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("xla-loader")]


def wait_for_threads() -> None:
    for thread in threads():
        thread.join(timeout=30)
    assert threads() == []


BATCHES = [{"x": torch.full((2,), float(number)), "host": np.arange(2), "pair": (number, torch.tensor(number))} for number in range(5)]


def test_batches_come_in_order_with_their_structure() -> None:
    loader = pl.MpDeviceLoader(BATCHES, torch_xla.device())
    assert len(loader) == 5
    for _ in range(2):
        for number, batch in enumerate(loader):
            assert list(batch) == ["x", "host", "pair"] and type(batch["pair"]) is tuple
            assert str(batch["x"].device) == "xla:0" and batch["x"].tolist() == [number, number]
            assert isinstance(batch["host"], np.ndarray)
            assert batch["pair"][0] == number and batch["pair"][1].item() == number
        assert number == 4
    assert all(batch["x"].device.type == "cpu" for batch in BATCHES), "the loader's own batches stay as they are"
    wait_for_threads()


@pytest.mark.parametrize(("every", "syncs"), [(1, 7), (2, 4)])
def test_steps_before_batches_and_twice_at_the_end(every: int, syncs: int) -> None:
    before = marks()
    for _ in pl.MpDeviceLoader(BATCHES, "xla", batches_per_execution=every):
        pass
    assert marks() - before == syncs


def test_the_last_step_takes_effect() -> None:
    total = torch.zeros((), device="xla")
    before = counter("ExecuteComputation")
    for batch in pl.MpDeviceLoader(BATCHES, "xla"):
        total += batch["x"].sum()
    ran = counter("ExecuteComputation") - before
    assert total.item() == 20.0
    assert counter("ExecuteComputation") - before == ran, "nothing was pending"


def test_upload_of_the_next_batch_starts_before_the_step_ends() -> None:
    """The step is held back on the host until the second batch is on its way; without uploads ahead this would not end."""
    uploads = threading.Semaphore(0)
    stop = subscribe(lambda event: uploads.release() if isinstance(event, TransferEvent) and event.nbytes == 4000 else None)
    try:
        batches = iter(pl.MpDeviceLoader([torch.full((1000,), float(number)) for number in range(3)], "xla"))
        first = next(batches)
        for _ in range(2):
            assert uploads.acquire(timeout=60), "batch 1 is uploaded although step 0 has not even been launched"
        assert first.sum().item() == 0.0
    finally:
        stop()
    del batches
    wait_for_threads()


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_is_read_ahead_than_allowed(workers: int) -> None:
    read: list[int] = []
    full = threading.Event()

    def source() -> Iterator[torch.Tensor]:
        for number in range(100):
            read.append(number)
            if number == 5:  # two on the device, three on the host, one in the reader's hand
                full.set()
            yield torch.tensor([number])

    loader = pl.ParallelLoader(source(), ["xla:0"], loader_prefetch_size=3, device_prefetch_size=2, host_to_device_transfer_threads=workers)
    batches = loader.per_device_loader("xla:0")
    assert full.wait(60)
    assert next(batches).item() == 0
    assert len(read) <= 7
    assert [next(batches).item() for _ in range(20)] == list(range(1, 21))
    batches.close()
    wait_for_threads()


def test_an_exception_of_the_loader_reaches_the_consumer_behind_what_came_before() -> None:
    def source() -> Iterator[torch.Tensor]:
        yield torch.ones(1)
        yield torch.ones(1)
        raise LookupError("in the loader")

    seen = 0
    with pytest.raises(LookupError, match="in the loader") as caught:
        for _ in pl.MpDeviceLoader(source(), "xla"):
            seen += 1
    assert seen == 2
    assert any(entry.name == "source" for entry in caught.traceback)
    wait_for_threads()


def test_an_early_break_stops_the_threads() -> None:
    def source() -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(1)

    loader = pl.MpDeviceLoader(source(), "xla")
    for _ in loader:
        break
    gc.collect()
    wait_for_threads()


def test_a_new_pass_closes_the_previous_one() -> None:
    loader = pl.MpDeviceLoader(BATCHES, "xla")
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(StopIteration):
        next(first)
    assert len(list(second)) == 5


def test_samples_are_dealt_out_and_an_incomplete_round_dropped(run_two_devices: Any) -> None:
    assert run_two_devices.split() == ["[0,", "2]", "[1,", "3]", "2"]


@pytest.fixture
def run_two_devices() -> str:
    """The report of a process with two devices on five batches."""
    import os
    import sys

    code = """
import torch, torch_xla.distributed.parallel_loader as pl
loader = pl.ParallelLoader([torch.tensor(number) for number in range(5)], ["xla:0", "xla:1"])
for device in ("xla:0", "xla:1"):
    batches = list(loader.per_device_loader(device))
    assert all(str(batch.device) == device for batch in batches)
    print([batch.item() for batch in batches])
print(len(loader.per_device_loader("xla:0")))
"""
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2"}
    done = forked_python.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Sharding:
    """Stands for a ShardingSpec: notes what it is applied to."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.minibatch = False
        self.applied: list[tuple[int, ...]] = []

    def can_apply(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() == self.rank

    def apply(self, tensor: torch.Tensor) -> None:
        self.applied.append(tuple(tensor.shape))


def test_input_sharding_is_forwarded() -> None:
    for_all, for_x = Sharding(2), Sharding(1)
    pairs = [(torch.zeros(2, 3), torch.zeros(2))]
    assert len(list(pl.MpDeviceLoader(pairs, "xla", input_sharding=for_all))) == 1
    assert for_all.applied == [(2, 3)]
    list(pl.MpDeviceLoader([{"x": torch.zeros(4), "y": torch.zeros(5)}], "xla", input_sharding={"x": for_x}))
    assert for_x.applied == [(4,)]
    with pytest.raises(ValueError, match="batches must be dicts"):
        list(pl.MpDeviceLoader(pairs, "xla", input_sharding={"x": for_x}))
    with pytest.raises(KeyError, match="z"):
        list(pl.MpDeviceLoader([{"x": torch.zeros(4)}], "xla", input_sharding={"z": for_x}))
    wait_for_threads()


def test_what_clients_rely_on() -> None:
    class Loader(list[torch.Tensor]):
        dataset = "the data"

    class Mine(pl.MpDeviceLoader):
        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                yield batch + 1

    source = Loader([torch.zeros(1)])
    loader = Mine(source, torch_xla.device())
    assert loader._loader is source and loader._device == torch.device("xla:0")
    loader._parallel_loader_kwargs["input_sharding"] = None
    assert loader.dataset == "the data"
    with pytest.raises(AttributeError):
        _ = loader.missing
    assert [batch.item() for batch in loader] == [1.0]


@pytest.mark.parametrize(
    "kwargs", [{"devices": []}, {"devices": ["xla"], "batches_per_execution": 0}, {"devices": ["xla"], "device_prefetch_size": 0}]
)
def test_wrong_arguments(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        pl.ParallelLoader([], **kwargs)
    with pytest.raises(TypeError, match="needs a loader"):
        pl.ParallelLoader(devices=["xla"])


class LoaderThatSaysWhereItIs:
    """As accelerate's loaders: it looks one batch ahead, and says of the batch that was just given whether it is the last."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.end_of_dataloader = False
        self.active = False
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.active, self.end_of_dataloader = True, False
        for number in range(self.count):
            self.threads.add(threading.get_ident())
            self.end_of_dataloader = number == self.count - 1
            yield torch.full((2,), float(number))
        self.active = False


@pytest.mark.parametrize(("every", "syncs"), [(1, 7), (2, 4)])
def test_a_loader_that_says_where_it_is_is_not_read_ahead(every: int, syncs: int) -> None:
    source = LoaderThatSaysWhereItIs(5)
    loader = pl.MpDeviceLoader(source, torch_xla.device(), batches_per_execution=every)
    for _ in range(2):
        before, seen = marks(), []
        for batch in loader:
            assert batch.device.type == "xla" and loader.active
            seen.append((batch.tolist(), loader.end_of_dataloader))
        assert seen == [([number, number], number == 4) for number in range(5)] and not loader.active
        assert marks() - before == syncs
    assert source.threads == {threading.get_ident()} and threads() == [] and len(iter(loader)) == 5  # type: ignore[arg-type]


class _MadeOnTheDevice(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(3).to("xla")


def test_what_a_loader_uploads_is_no_leak_of_a_seal_but_what_its_data_set_does_is() -> None:
    (torch.ones(3, device="xla") + 1).sum().item()
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(6.0)), batch_size=2)
    made_on_device = torch.utils.data.DataLoader(_MadeOnTheDevice(), batch_size=2)
    with torch_xla.seal(transfers="error"):
        assert [x.shape for (x,) in pl.MpDeviceLoader(batches, "xla")] == [(2,), (2,), (2,)]
        with pytest.raises(RuntimeError, match=r"test_loader\.py:\d+ uploads 12 bytes"):
            next(iter(pl.MpDeviceLoader(made_on_device, "xla")))
    wait_for_threads()


def test_on_the_cpu_the_loader_is_itself() -> None:
    before = marks()
    assert [batch["x"].device.type for batch in pl.MpDeviceLoader(BATCHES, "cpu")] == ["cpu"] * 5
    assert marks() == before and threads() == []


@pytest.mark.parametrize("device", ["xla", "cpu"])
@pytest.mark.parametrize("inline", [False, True])
def test_batches_are_padded_to_buckets_and_the_last_one_is_as_large_as_the_others(device: str, inline: bool) -> None:
    padding = Padding(Buckets((4, 8)), {"tokens": 9, "label": -100}, rows=3, mask="mask")
    batches = [
        {"tokens": torch.ones(3, 5, dtype=torch.int64), "label": torch.tensor([1, 2, 3])},
        {"tokens": torch.ones(2, 3, dtype=torch.int64), "label": torch.tensor([4, 5])},
    ]
    source: Any = LoaderThatKnowsItsEnd(batches) if inline else batches
    padded = [{name: entry.cpu() for name, entry in batch.items()} for batch in pl.MpDeviceLoader(source, device, buckets=padding)]
    assert [tuple(batch["tokens"].shape) for batch in padded] == [(3, 8), (3, 4)]
    assert padded[1]["tokens"].tolist() == [[1, 1, 1, 9], [1, 1, 1, 9], [9] * 4]
    assert [batch["label"].tolist() for batch in padded] == [[1, 2, 3], [4, 5, -100]]
    assert [batch["mask"].sum(1).tolist() for batch in padded] == [[5, 5, 5], [3, 3, 0]]


class LoaderThatKnowsItsEnd(list[Any]):
    """As those of accelerate: read in the consumer's thread."""

    end_of_dataloader = False


def test_buckets_that_pad_nothing_are_refused_when_the_loader_is_made() -> None:
    with pytest.raises(TypeError, match=r"give torch_xla.shapes.Padding\(buckets\)"):
        pl.MpDeviceLoader(BATCHES, "xla", buckets=Buckets((4, 8)))
    loader = pl.MpDeviceLoader([torch.ones(2, 9)], "xla", buckets=Padding(Buckets((4, 8))))
    with pytest.raises(ValueError, match="no bucket takes a length of 9"):
        next(iter(loader))

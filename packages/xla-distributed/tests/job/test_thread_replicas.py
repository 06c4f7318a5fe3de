"""Threads of one process as replicas: DataParallel, spawn_threads, collectives among them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from xla_distributed.errors import ReplicaTimeoutError
from xla_distributed.job.thread_replicas import ThreadRendezvous

Report = dict[str, Any]


@pytest.fixture(scope="module")
def report(start: Callable[..., Any]) -> Report:
    """Of `programs/threads.py`, one process with two devices."""
    job = start("threads", 2)
    code, out, err = job.end()
    assert code == 0, f"exit code {code}\n{out}\n{err}"
    found: Report = job.report(0)
    return found


def trained() -> list[torch.Tensor]:
    """The end of one process on the CPU, which sees the batches of both devices as one."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, 4, generator=generator), torch.randn(3, 2, generator=generator)) for _ in range(5)]
    for _ in range(2):
        for first, second in ((0, 1), (2, 3)):
            x, y = (torch.cat(pair) for pair in zip(batches[first], batches[second], strict=True))
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
    return [tensor for name, tensor in net.state_dict().items() if not name.endswith("num_batches_tracked")]


def test_two_devices_train_as_one_process_with_the_whole_batch(report: Report) -> None:
    found = report["training"]
    assert found["ends"][0] == found["ends"][1], "the devices agree in every bit"
    for mine, wanted in zip(found["ends"][0], trained(), strict=True):
        torch.testing.assert_close(torch.tensor(mine), wanted, rtol=1e-4, atol=1e-6)


def test_each_device_has_its_loop(report: Report) -> None:
    found = report["training"]
    assert found["devices"] == ["xla:0", "xla:1"]
    once = [[2, "xla:0", 2, 0, True], [2, "xla:1", 2, 1, False]]
    assert found["results"] == [once, once], "the last batch has no other, and is dropped"
    assert found["late"] == 0, "programs compiled by the third pass"


MINE = [torch.tensor([[1.0, -2.0], [3.0, 5.0]]) * (1 - 3 * ordinal) for ordinal in range(2)]
WHOLE = [torch.tensor([6, 3, 7]) - 2 * ordinal for ordinal in range(2)]


def expected(ordinal: int) -> dict[str, Any]:
    """The results of the collectives of `programs/threads.py` on replica `ordinal`."""
    a, b = MINE
    c, d = WHOLE
    flags = [whole > 4 for whole in WHOLE]
    tensors = {
        "float sum": (a + b) / 2,
        "float mul": a * b / 2,
        "float min": torch.minimum(a, b) / 2,
        "float max": torch.maximum(a, b) / 2,
        "whole sum": c + d,
        "whole and": c & d,
        "whole or": c | d,
        "flag sum": flags[0] | flags[1],
        "flag and": flags[0] & flags[1],
        "flag max": flags[0] | flags[1],
        "alone": MINE[ordinal],
        "gather": torch.cat(MINE, 1),
        "gather swapped": torch.cat([b, a]),
        "scatter": (2 * (a + b))[:, ordinal : ordinal + 1],
        "exchange": torch.cat([mine[ordinal : ordinal + 1] for mine in MINE], 1),
        "permute": a if ordinal else torch.zeros(2, 2),
        "gradient": 2 * MINE[ordinal],
    }
    return {name: tensor.tolist() for name, tensor in tensors.items()} | {
        "same list": True,
        "list": [(a + b).tolist(), (c + d).tolist(), (a[0] + b[0] + 2).tolist()],
        "broadcast": [b.tolist(), d.tolist()],
        "mean": 1.0,
        "payloads": ["0", "1"],
        "on one": d.tolist() if ordinal else None,
    }


@pytest.mark.parametrize("ordinal", [0, 1])
def test_collectives_among_threads(report: Report, ordinal: int) -> None:
    text, found = report["spawned"][ordinal]
    assert text == "given"
    assert found == expected(ordinal)


@pytest.mark.parametrize("loop", ["raises", "raises_while_others_wait"])
def test_what_a_loop_raises_reaches_the_caller(report: Report, loop: str) -> None:
    found = report["failures"][loop]
    assert (found["error"], found["text"]) == ("KeyError", "'mine'")
    assert found["frames"][-1] == loop and found["left"] == []


def test_a_loop_may_end_before_the_others(report: Report) -> None:
    assert report["failures"]["ends_early"] == {"result": [30, 2], "left": []}


def test_waiting_for_a_loop_that_has_ended_is_an_error(report: Report) -> None:
    found = report["failures"]["ends_without_the_other"]
    assert found["error"] == "ReplicaLostError" and found["left"] == []
    assert "xla:1 has returned" in found["text"] and "all_reduce(float32[3]" in found["text"]


def test_loops_that_disagree_are_told_both_sides(report: Report) -> None:
    found = report["failures"]["disagrees"]
    assert found["error"] == "CollectiveMismatchError" and found["left"] == []
    assert all(text in found["text"] for text in ("xla:0", "xla:1", "float32[3]", "float32[4]"))


def test_tags_that_differ_are_told(report: Report) -> None:
    found = report["failures"]["comes_elsewhere"]
    assert found["error"] == "CollectiveMismatchError" and found["left"] == []
    assert all(text in found["text"] for text in ("xla:0", "xla:1", "rendezvous 'loss'", "rendezvous 'score'"))


def test_other_sets_of_devices(report: Report) -> None:
    found = report["elsewhere"]
    assert found["cpu"] == [[3, ["cpu"], "cpu", "cpu", 1, "cpu"]] and found["cpu is the network"]
    assert found["one"] == [[3, ["xla:1"], "xla:1", "xla:1", 1, "xla:1"]] and found["copied"] == "cpu"
    for name, text in (("twice", "'xla:0', 'xla:0'"), ("other", "'cpu'")):
        assert text in found[name]


def test_who_does_not_arrive_in_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_COLLECTIVE_TIMEOUT_SECONDS", "0.05")
    with pytest.raises(ReplicaTimeoutError, match=r"xla:0 waited 0\.05 s in a sum for xla:1, xla:2"):
        ThreadRendezvous(["xla:0", "xla:1", "xla:2"]).exchange(0, "a sum", None)


def test_contexts_keep_what_loops_make() -> None:
    from torch_xla.distributed.data_parallel import Context

    context = Context(torch.device("cpu"))
    made = functools.partial(list, (1,))
    first = context.getattr_or("things", made)
    assert first == [1] and context.getattr_or("things", made) is first
    assert context.getattr_or("number", 3) == 3 and context.number == 3

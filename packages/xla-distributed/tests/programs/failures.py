"""Replicas that fail, disagree, or do not arrive: `failures.py FOLDER CASE`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

import harness
import torch_xla.core.xla_model as xm


def reduce_ones(*shape: int) -> Any:
    return xm.all_reduce("sum", torch.ones(*shape, device="xla")).sum().item()


def caught(action: Any) -> dict[str, Any]:
    """The error that an action raises, and the seconds until then."""
    start = time.monotonic()
    try:
        return {"result": action(), "seconds": time.monotonic() - start}
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error), "seconds": time.monotonic() - start}


def hold(folder: str, rank: int) -> None:
    """Say that this replica is there, and stay."""
    harness.note(folder, f"there-{rank}", str(os.getpid()))
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)


def other_shapes(rank: int, folder: str) -> Any:
    return caught(lambda: reduce_ones(2 + rank))


def other_order(rank: int, folder: str) -> Any:
    """Two programs that all replicas know, in another order on one."""
    return caught(lambda: other_order_uncaught(rank, folder))


def other_order_uncaught(rank: int, folder: str) -> Any:
    """The same; nobody catches anything."""
    reduce_ones(2)
    reduce_ones(3)
    return reduce_ones(2 + rank)


def one_more(rank: int, folder: str) -> Any:
    """A collective that only one replica runs."""
    reduce_ones(2)
    return caught(lambda: reduce_ones(5)) if rank == 0 else caught(lambda: xm.rendezvous("end"))


def one_more_known(rank: int, folder: str) -> Any:
    """A collective that all have run before, and that only one replica runs again."""
    reduce_ones(2)
    return reduce_ones(2) if rank == 0 else xm.rendezvous("end")


def late_new(rank: int, folder: str) -> Any:
    """One replica runs what is new, the other what is known."""
    reduce_ones(2)
    return caught(lambda: reduce_ones(3 if rank else 2))


def raises(rank: int, folder: str) -> Any:
    reduce_ones(2)
    if rank == 1:
        raise ValueError("the culprit")
    return reduce_ones(2)


def raises_in_do_on_ordinals(rank: int, folder: str) -> Any:
    def target() -> None:
        raise KeyError("the culprit")

    xm.do_on_ordinals(target, (), (1,))


def without_replica_1(rank: int, folder: str, action: Any) -> Any:
    """The error that an action raises on replica 0, to which replica 1 does not come."""
    if rank == 1:
        hold(folder, rank)
        return None
    found = caught(action)
    harness.note(folder, "go", "")
    return found


def absent(rank: int, folder: str) -> Any:
    """From a known collective."""
    reduce_ones(2)
    return without_replica_1(rank, folder, lambda: reduce_ones(2))


def absent_at_first(rank: int, folder: str) -> Any:
    """From a new collective."""
    return without_replica_1(rank, folder, lambda: reduce_ones(2))


def absent_at_rendezvous(rank: int, folder: str) -> Any:
    """From a rendezvous."""
    return without_replica_1(rank, folder, lambda: xm.rendezvous("lunch"))


def endless(rank: int, folder: str) -> Any:
    """Collectives until somebody ends the process; replica 1 stops taking part after a while, so that the others wait in one."""
    reduce_ones(2)
    harness.note(folder, f"there-{rank}", str(os.getpid()))
    if rank == 1:
        while True:
            time.sleep(0.01)
    while True:
        reduce_ones(2)


if __name__ == "__main__":
    case = harness.sys.argv.pop()
    of_the_launcher = case.startswith(("raises", "absent", "endless"))
    harness.main(globals()[case], start_method="spawn" if of_the_launcher else "fork")

"""Marked modules keep their shardings when they are saved and loaded, and the hooks of their state dicts see marked tensors."""

from __future__ import annotations

from typing import Any

BOTH = "{devices=[4,2]0,1,2,3,4,5,6,7}"
SEEN = {"0.weight": [BOTH, [2, 4]], "1.weight": [BOTH, [2, 4]]}


def test_files(report: Any) -> None:
    found = report("saving.files")
    assert found["before"] == SEEN
    for way in ("xm.save", "xser", "torch.save"):
        assert found[way] == [True, True, 0.0], f"{way}: what was saved, and what is loaded, stays sharded"


def test_hooks_of_state_dicts(report: Any) -> None:
    found = report("saving.hooks")
    names = ["0.bias", "0.weight", "1.bias", "1.weight", "copy.weight", "on the host"]
    assert found["calls"] == ["before saving", ["saved", SEEN], ["loading", names], ["loaded", SEEN]]
    assert found["copy"] == BOTH and found["values"] == 0.0

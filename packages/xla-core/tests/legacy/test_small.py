"""Rates, deprecations, variable names, checkpoint tags and view sharing."""

from __future__ import annotations

import logging
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_xla.core import xla_env_vars as xenv
from torch_xla.experimental import deprecation
from torch_xla.utils.checkpoint_tagger import CheckpointTagger
from xla_core.base import config
from xla_core.base import deprecation as deprecation_impl
from xla_core.legacy import rate_tracker
from xla_core.legacy.view_sharing import check_view_sharing


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rate_tracker, "time", clock)
    return clock


def test_rates(clock: Clock) -> None:
    tracker = rate_tracker.RateTracker(smooth_factor=0.25)
    assert tracker.rate() == 0.0 and tracker.global_rate() == 0.0
    tracker.add(10)
    tracker.add(20)
    clock.now += 2.0
    assert tracker.rate() == 15.0
    assert tracker.rate() == 0.0
    tracker.add(9)
    clock.now += 1.0
    assert tracker.rate() == pytest.approx(0.75 * 9.0 + 0.25 * 15.0)
    assert tracker.global_rate() == 13.0
    clock.now += 10.0
    assert tracker.global_rate() == 3.0


def test_no_time_keeps_the_count(clock: Clock) -> None:
    tracker = rate_tracker.RateTracker()
    tracker.add(4)
    assert tracker.rate() == 0.0
    clock.now += 2.0
    assert tracker.rate() == 2.0


def test_default_smoothing(clock: Clock) -> None:
    def second_rate() -> float:
        tracker = rate_tracker.RateTracker()
        for count in (10, 20):
            tracker.add(count)
            clock.now += 1.0
            rate = tracker.rate()
        return rate

    with config.override(config.RATE_TRACKER_SMOOTHING, 0.5):
        assert second_rate() == 15.0
    assert second_rate() == pytest.approx(0.6 * 20 + 0.4 * 10)


@pytest.fixture
def warnings_of(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setattr(deprecation_impl, "_warned", set())

    class Messages(list[str]):
        def __eq__(self, other: object) -> bool:
            return caplog.messages == other

    with caplog.at_level(logging.WARNING, logger="torch_xla"):
        yield Messages()


def new_name(a: int, b: int = 2) -> int:
    return a * b


old_module = types.ModuleType("some.module")


def test_deprecated_names_old_and_new_once(warnings_of: list[str]) -> None:
    old = deprecation.deprecated(old_module, new_name, "old_name", extra_msg="Gone in 9.9.")
    assert warnings_of == []
    assert old(3) == 6 and old(3, b=5) == 15
    assert warnings_of == [f"some.module.old_name is deprecated, use {__name__}.new_name instead. Gone in 9.9."]
    assert (old.__name__, old.__module__) == ("old_name", "some.module")


def test_once_per_name_in_the_process(warnings_of: list[str]) -> None:
    for _ in range(2):
        deprecation.deprecated(old_module, new_name)(1)
    deprecation.deprecated(old_module, new_name, "other")(1)
    assert warnings_of == [
        f"some.module.new_name is deprecated, use {__name__}.new_name instead.",
        f"some.module.other is deprecated, use {__name__}.new_name instead.",
    ]


def test_mark_deprecated_keeps_the_old_body(warnings_of: list[str]) -> None:
    @deprecation.mark_deprecated(new_name, extra_msg="Soon.")
    def old(a: int) -> str:
        return f"old {a}"

    assert old(1) == "old 1" == old(1)
    where = f"{__name__}.test_mark_deprecated_keeps_the_old_body.<locals>.old"
    assert warnings_of == [f"{where} is deprecated, use {__name__}.new_name instead. Soon."]


def test_register_deprecated_calls_the_new_function(warnings_of: list[str]) -> None:
    @deprecation.register_deprecated(old_module, new_name)
    def older(a: int) -> int:
        raise AssertionError(a)

    assert older(4) == 8
    assert warnings_of == [f"some.module.older is deprecated, use {__name__}.new_name instead."]


def test_constants_equal_their_names() -> None:
    renamed = {"TPU_MESH_CTLER_ADDR": "TPU_MESH_CONTROLLER_ADDRESS", "TPU_MESH_CTLER_PORT": "TPU_MESH_CONTROLLER_PORT"}
    assert {name: getattr(xenv, name) for name in xenv.__all__} == {name: name for name in xenv.__all__} | renamed
    assert {"PJRT_DEVICE", "CPU_NUM_DEVICES", "PJRT_LOCAL_PROCESS_RANK"} <= set(xenv.__all__)
    assert {setting.name for setting in config.SETTINGS} <= set(xenv.__all__)


def test_tagger_removes_what_lost_its_last_tag() -> None:
    removed: list[str] = []
    tagger = CheckpointTagger(remover=removed.append)
    tagger.add("c1", ["best", "last"])
    tagger.add("c2", "last")
    assert removed == [] and tagger.path("last") == "c2" and tagger.tags("c1") == ("best",)
    tagger.add("c3", ["last"])
    assert removed == ["c2"]
    tagger.add("c3", ["best", "best"])
    assert removed == ["c2", "c1"] and tagger.paths() == ("c3",)
    tagger.add("c3", ["last"])
    tagger.remove_tag("last")
    assert removed == ["c2", "c1"]
    tagger.remove_tag("best")
    assert removed == ["c2", "c1", "c3"] and tagger.path("best") is None
    with pytest.raises(KeyError):
        tagger.remove_tag("best")
    with pytest.raises(ValueError, match="c4 needs at least one tag"):
        tagger.add("c4", [])


def test_tagger_deletes_files_and_folders_by_default(tmp_path: Path) -> None:
    file, folder = tmp_path / "a.pt", tmp_path / "b"
    file.write_text("x")
    folder.mkdir()
    (folder / "part").write_text("y")
    tagger = CheckpointTagger()
    for path in (file, folder, tmp_path / "never written", tmp_path / "c"):
        tagger.add(str(path), ["last"])
    assert list(tmp_path.iterdir()) == []


def shared_storage() -> dict[str, Any]:
    base = torch.arange(6)
    return {"a": [base], "b": (1, base[2:])}


@pytest.mark.parametrize(
    ("nesting", "first", "second"),
    [
        (shared_storage(), "obj['a'][0] (torch.int64[6] on cpu)", "obj['b'][1] (torch.int64[4] on cpu)"),
        ((lambda t: [t, t.detach()])(torch.ones(2, 3)), "obj[0] (torch.float32[2, 3] on cpu)", "obj[1] (torch.float32[2, 3] on cpu)"),
        ((lambda t: [t, t.detach()])(torch.eye(3).to_sparse()), "obj[0]", "obj[1]"),
    ],
)
def test_sharing_names_both(nesting: Any, first: str, second: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        check_view_sharing(nesting)
    assert first in str(caught.value) and second in str(caught.value)


@pytest.mark.parametrize(
    "nesting",
    [
        (lambda t: [t, {"again": t}])(torch.ones(2)),
        [torch.ones(2), torch.ones(2)],
        [torch.empty(0), torch.empty(0)],
        [torch.empty(2, device="meta"), torch.empty(2, device="meta")],
        torch.nn.Linear(2, 2),
        {"n": 1},
    ],
)
def test_no_sharing(nesting: Any) -> None:
    check_view_sharing(nesting)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_compressed_sparse_tensors_share_by_their_values() -> None:
    compressed = torch.eye(3).to_sparse_csr()
    with pytest.raises(RuntimeError, match="share memory"):
        check_view_sharing([compressed, compressed.values()])


def test_tied_modules_are_fine_and_data_is_not() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    second.weight = first.weight
    check_view_sharing([first, second])
    second.weight = torch.nn.Parameter(first.weight.data)
    with pytest.raises(RuntimeError, match=r"obj\[0\]\._parameters\['weight'\].*obj\[1\]\._parameters\['weight'\]"):
        check_view_sharing([first, second])


def test_alias_groups_come_from_the_key() -> None:
    a, b, c = torch.ones(1), torch.ones(1), torch.ones(1)
    groups = {id(a): 1, id(b): 2, id(c): 1}
    check_view_sharing([a, b], alias_key=lambda t: groups[id(t)])
    with pytest.raises(RuntimeError):
        check_view_sharing([a, b, c], alias_key=lambda t: groups[id(t)])


def test_xla_tensors_tell_their_alias_group() -> None:
    def tensor(group: int) -> Any:
        return types.SimpleNamespace(device=torch.device("xla:0"), _xla_alias_id=group)

    from xla_core.legacy.view_sharing import alias_key

    assert alias_key(tensor(1)) == alias_key(tensor(1)) != alias_key(tensor(2))


OLD_PLAN = deprecation_impl.Deprecation("plan(kind=…)", "plan(device=…)", "my-package 1.2.0", "2029-01")


def test_a_deprecation_warns_once_with_version_and_month(warnings_of: list[str]) -> None:
    for _ in range(2):
        OLD_PLAN.warn()
    expected = "plan(kind=…) is deprecated, use plan(device=…) instead (since my-package 1.2.0; releases from 2029-01 on may lack it)."
    assert warnings_of == [expected] and OLD_PLAN.message == expected


@pytest.mark.parametrize(
    ("since", "removal"),
    [("1.2.0", "2029-01"), ("my-package", "2029-01"), ("my-package 1.2.0", "2029-13"), ("my-package 1.2.0", "2029"), ("", "2029-01")],
)
def test_a_deprecation_has_a_version_and_a_month(since: str, removal: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        deprecation_impl.Deprecation("a", "b", since, removal)

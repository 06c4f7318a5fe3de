"""The processes of jobs keep their programs in one folder, also two jobs at once, and later jobs load them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Reports = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "programs"


@pytest.fixture(scope="module")
def first(start: Callable[..., Any], folder: Path) -> tuple[Reports, Reports]:
    """Two jobs at once on an empty folder, whose processes all write, each program twice."""
    jobs = [start("cached", 2, folder, "write") for _ in range(2)]
    one, other = (job.reports() for job in jobs)
    return one, other


@pytest.fixture(scope="module")
def second(start: Callable[..., Any], folder: Path, first: tuple[Reports, Reports]) -> Reports:
    """A later job, that may only look up."""
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    found: Reports = start("cached", 2, folder, "readonly").reports()
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    return found


def test_jobs_that_write_at_once_do_no_harm(first: tuple[Reports, Reports], folder: Path) -> None:
    for report in [*first[0], *first[1]]:
        assert report["warnings"] == []
        assert report["PersistentCacheHit"] + report["UncachedCompile"] == 3, "a broadcast, the steps, a sum"
        assert report["PersistentCacheMiss"] == report["UncachedCompile"]
    assert {file.suffix for file in folder.iterdir()} == {".xla"}, "whole entries, and nothing left over"


def test_a_later_job_compiles_nothing(first: tuple[Reports, Reports], second: Reports) -> None:
    for report in second:
        assert report["warnings"] == []
        assert (report["PersistentCacheMiss"], report["UncachedCompile"]) == (0, 0)
        assert report["PersistentCacheHit"] == 3


def test_what_is_loaded_computes_the_same(first: tuple[Reports, Reports], second: Reports) -> None:
    for report in [*first[0], *first[1], *second]:
        assert report["values"] == pytest.approx(report["expected"], abs=1e-5)
        assert report["values"] == first[0][0]["values"]
        assert report["total"] == 3.0

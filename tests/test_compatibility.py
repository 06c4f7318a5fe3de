"""docs/compatibility.md says what the wheels' metadata says, and shows what was measured."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import compat

ROOT = compat.ROOT
ROWS = compat.read_rows()


def allowed() -> dict[str, Requirement]:
    metadata = tomllib.loads((ROOT / "packages/xla-core/pyproject.toml").read_text(encoding="utf-8"))
    return {found.name: found for found in map(Requirement, metadata["project"]["dependencies"])}


def test_the_page_shows_the_rows() -> None:
    assert compat.PAGE.read_text(encoding="utf-8") == compat.page(ROWS)


def test_there_is_a_row_for_each_environment_of_the_matrix() -> None:
    environments = tomllib.loads((ROOT / "hatch.toml").read_text(encoding="utf-8"))["envs"]["compat"]["matrix"]
    keys = [row.key for row in ROWS]
    assert keys == sorted(set(keys))
    assert set(keys) == {tuple(map(Version, (*each["torch"], *each["jax"], *each["python"]))) for each in environments}


@pytest.mark.parametrize("name", ["torch", "jax", "jaxlib"])
def test_ranges_end_where_the_rows_end(name: str) -> None:
    tested = sorted(Version(getattr(row, name).partition("+")[0]) for row in ROWS)
    limits = {part.operator: Version(part.version) for part in allowed()[name].specifier}
    assert all(str(version) in allowed()[name].specifier for version in tested)
    assert limits[">="].release == tested[0].release[: len(limits[">="].release)], "the oldest that is allowed was tested"
    *most, last = limits["<"].release
    newest = (*most, last - 1)
    assert tested[-1].release[: len(newest)] == newest, "the newest that is allowed was tested"


@pytest.mark.parametrize(
    "metadata", [ROOT / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml"))], ids=lambda file: file.parent.name
)
def test_every_python_that_is_named_was_tested(metadata: Path) -> None:
    named = re.findall(r"Python :: (3\.\d+)", metadata.read_text(encoding="utf-8"))
    assert sorted(map(Version, named)) == sorted({row.key[2] for row in ROWS})


def test_the_readme_names_what_was_tested() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    torches, jaxes, pythons = (sorted({row.key[part] for row in ROWS}) for part in range(3))
    assert f"| Python | {', '.join(map(str, pythons))} |" in readme
    assert f"| torch | {', '.join(f'{version.major}.{version.minor}' for version in torches)} |" in readme
    assert f"| jax, jaxlib | {', '.join(map(str, jaxes))} |" in readme


def test_no_row_has_a_failed_test() -> None:
    assert {row.key: row.failures for row in ROWS if row.failures} == {}


def test_results_are_counted_by_part() -> None:
    import xml.etree.ElementTree as ET

    report = ET.fromstring(
        "<testsuite>"
        '<testcase classname="packages.xla-core.tests.base.test_private_names" name="one"/>'
        '<testcase classname="packages.xla-spmd.tests.test_compat" name="two"><skipped/></testcase>'
        '<testcase classname="packages.xla-core.tests.ops.test_unary" name="three[x]"><failure/></testcase>'
        '<testcase classname="tests.test_demo" name="four"/>'
        "</testsuite>"
    )
    counts, failures = compat.outcomes(report.iter("testcase"))
    assert str(counts["private names"]) == "1 passed, 1 skipped"
    assert str(counts["core"]) == "**1 failed**, 0 passed"
    assert counts["demo"].passed == 1 and counts["operators"].passed == 0
    assert failures == ["packages.xla-core.tests.ops.test_unary::three[x]"]

"""`assert_max_compiles`, in a test and as a fixture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_xla
import xla_debug


def step(size: int) -> None:
    kept = torch.ones(size).to("xla").cosh()
    torch_xla.sync()
    del kept


def test_as_many_as_allowed() -> None:
    with xla_debug.assert_max_compiles(2) as reasons:
        for size in (91, 92, 91, 92):
            step(size)
    assert len(reasons) == 2


def test_one_more_explains_all() -> None:
    with pytest.raises(xla_debug.TooManyCompilesError) as caught, xla_debug.assert_max_compiles(1):
        for size in (93, 94):
            step(size)
    text = str(caught.value)
    assert isinstance(caught.value, AssertionError)
    assert "2 programs were compiled, at most 1 were allowed" in text
    assert "input 0 is f32[94], was f32[93], first used by aten.cosh" in text and f"{__file__}:" in text


def test_an_error_inside_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), xla_debug.assert_max_compiles(0):
        step(95)
        _ = 1 / 0


def test_a_negative_limit() -> None:
    with pytest.raises(ValueError, match="-1"), xla_debug.assert_max_compiles(-1):
        pass


def test_the_fixture(tmp_path: Path) -> None:
    test = tmp_path / "test_user.py"
    test.write_text(
        "import torch, torch_xla\n"
        "def test_growing(assert_max_compiles):\n"
        "    with assert_max_compiles(1):\n"
        "        for size in (3, 4):\n"
        "            kept = torch.ones(size).to('xla').cosh()\n"
        "            torch_xla.sync()\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(test)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1 and "input 0 is f32[4], was f32[3], first used by aten.cosh" in done.stdout, done.stdout

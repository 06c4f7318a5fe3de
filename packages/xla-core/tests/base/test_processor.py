"""The processor's instruction sets, from the kernel's file about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from xla_core.base import processor
from xla_core.base.processor import instruction_sets, multiplies_bfloat16


@pytest.mark.parametrize("row", ["flags\t\t: fpu avx512_bf16 avx", "Features\t: fp asimd bf16"])
def test_sets_are_read_from_the_first_processor(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = tmp_path / "cpuinfo"
    described.write_text(f"processor\t: 0\nmodel name\t: flags of all\n{row}\n\nprocessor\t: 1\nflags\t: other\n", encoding="utf-8")
    sets = instruction_sets(described)
    assert sets == set(row.split()[-3:])
    monkeypatch.setattr(processor, "instruction_sets", lambda: sets)
    assert multiplies_bfloat16()


def test_without_such_a_file_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert instruction_sets(tmp_path / "none") == frozenset()
    monkeypatch.setattr(processor, "instruction_sets", frozenset)
    assert not multiplies_bfloat16()

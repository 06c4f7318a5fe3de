"""Tensor files that the model comparator is given: no code in them is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from xla_debug.model_comparator import tensor_file_compare


class Harm:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("new_format", [True, False])
def test_no_code_is_run(tmp_path: Path, new_format: bool) -> None:
    torch.save(Harm(tmp_path / "harm"), tmp_path / "1.pt", _use_new_zipfile_serialization=new_format)
    torch.save(torch.ones(2), tmp_path / "2.pt")
    for first, second in (("1.pt", "2.pt"), ("2.pt", "1.pt")):
        with pytest.raises(ValueError, match=r"1\.pt"):
            tensor_file_compare(tmp_path / first, tmp_path / second)
    assert not (tmp_path / "harm").exists()

"""Sessions that notice ever new graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla._XLAC as xlac


@pytest.fixture(autouse=True)
def no_session() -> Iterator[None]:
    torch_xla.sync()
    yield
    xlac._dynamic_shape_detector_end_session()
    xlac._dynamic_shape_detector_remove_session("here")
    xlac._dynamic_shape_detector_set_max_different_graphs(1)
    torch_xla.sync()


def step(size: int) -> None:
    xlac._dynamic_shape_detector_start_session("here")
    try:
        kept = torch.ones(size, device="xla") * 2 + 1
        torch_xla.sync()
        assert kept is not None
    finally:
        xlac._dynamic_shape_detector_end_session()
    del kept


def test_a_shape_too_many_is_an_error_that_shows_it() -> None:
    xlac._dynamic_shape_detector_set_max_different_graphs(2)
    assert xlac._dynamic_shape_detector_get_max_different_graphs() == 2
    for size in (3, 4, 3, 4):
        step(size)
    with pytest.raises(RuntimeError, match=r"session 'here' makes more than max_different_graphs=2") as caught:
        step(5)
    assert "-" in str(caught.value) and "f32[4]" in str(caught.value) and "f32[5]" in str(caught.value)
    torch_xla.sync()
    xlac._dynamic_shape_detector_remove_session("here")
    step(5)


def test_outside_of_sessions_nothing_is_counted() -> None:
    step(3)
    for size in (6, 7):
        kept = torch.ones(size, device="xla") * 2
        torch_xla.sync()
        assert kept.tolist() == [2.0] * size
    step(3)


def test_wrong_use() -> None:
    with pytest.raises(ValueError, match="at least one"):
        xlac._dynamic_shape_detector_set_max_different_graphs(0)
    xlac._dynamic_shape_detector_start_session("here")
    with pytest.raises(RuntimeError, match="_dynamic_shape_detector_end_session"):
        xlac._dynamic_shape_detector_start_session("there")
    xlac._dynamic_shape_detector_end_session()
    xlac._dynamic_shape_detector_end_session()
    xlac._dynamic_shape_detector_remove_session("not there")


def test_regions_name_the_function_and_show_the_difference() -> None:
    @torch_xla.compile(full_graph=True)
    def reads(tensor: torch.Tensor) -> float:
        return float((tensor + 1).sum())

    @torch_xla.compile(max_different_graphs=1)
    def grows(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.exp()

    class Reads(torch.nn.Module):
        def forward(self, tensor: torch.Tensor) -> float:
            return float((tensor + 1).sum())

    with pytest.raises(RuntimeError, match="'reads'"):
        reads(torch.ones(2, device="xla"))
    with pytest.raises(RuntimeError, match="'Reads'"):
        torch_xla.compile(Reads(), full_graph=True)(torch.ones(2, device="xla"))
    torch_xla.sync()
    grows(torch.ones(2, device="xla"))
    with pytest.raises(RuntimeError, match=r"'grows' makes more than max_different_graphs=1(.|\n)*f32\[3\]"):
        grows(torch.ones(3, device="xla"))

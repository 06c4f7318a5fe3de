"""What collectives refuse, for one replica and for several alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from xla_core.api.collective_arguments import check_groups, check_output, check_tensors, dimension, tensor_list

X = torch.zeros(2, 3)


def test_tensors_and_dimensions() -> None:
    check_tensors("all_gather", [X, X])
    assert [dimension(X, dim) for dim in (-2, 1)] == [0, 1]
    with pytest.raises(TypeError, match="all_gather takes tensors, got list"):
        check_tensors("all_gather", [X, [X]])
    with pytest.raises(IndexError):
        dimension(X, 2)


def test_one_tensor_or_a_list() -> None:
    assert tensor_list("all_gather", X, True) == [X]
    listed = [X, X]
    assert tensor_list("all_gather", listed, False) is listed
    with pytest.raises(RuntimeError, match="all_gather of a list needs pin_layout=False"):
        tensor_list("all_gather", listed, True)
    for given in ("text", (X, X), [X, 3]):
        with pytest.raises(TypeError, match="all_gather takes a tensor or a list of tensors, got"):
            tensor_list("all_gather", given, False)


@pytest.mark.parametrize(
    ("value", "output", "error"),
    [(X, [X], TypeError), ([X], X, TypeError), ([X], (X,), TypeError), ([X], [X, X], ValueError), ([X], [3], TypeError)],
)
def test_outputs_that_cannot_take_the_result(value: Any, output: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="all_gather: output"):
        check_output("all_gather", value, output)
    for good in (None, value):
        check_output("all_gather", value, good)


def test_groups_have_each_replica_once() -> None:
    assert check_groups(None, 4) == check_groups([], 4) == []
    assert check_groups([(0, 2), (3, 1)], 4) == [[0, 2], [3, 1]]
    for groups in ([[0, 1], [1, 2, 3]], [[0, 1, 2, 4]], [[-1, 0, 1, 2]]):
        with pytest.raises(ValueError, match="groups are lists of ordinals from 0 to 3, each named at most once"):
            check_groups(groups, 4)
    with pytest.raises(ValueError, match=r"ordinals \[1, 3\] are in none of the groups \[\[0, 2\]\]"):
        check_groups([[0, 2]], 4)

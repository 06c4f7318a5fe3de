"""Buffers that the user gives away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_xla
import torch_xla._XLAC as xlac
from torch_xla.experimental.eager import eager_mode_context
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config
from torch_xla.utils.dlpack import to_dlpack
from xla_core.base import metrics


@pytest.fixture(autouse=True)
def nothing_pending() -> Iterator[None]:
    torch_xla.sync()
    yield
    xlac._xla_set_enable_alias_with_buffer_donor_config(False)
    torch_xla.sync()


def aliased() -> float:
    found = metrics.metric("InputOutputAliasCount")
    return 0.0 if found is None else found.accumulator


def test_a_step_takes_over_what_is_marked() -> None:
    # Aliases are counted where a program is compiled: a size that no other test has.
    given, kept = torch.arange(43.0).to("xla"), torch.ones(43).to("xla")
    assert not xlac._get_buffer_donation(given)
    assert xlac._set_buffer_donation(given, True) and xlac._get_buffer_donation(given)
    before, result = aliased(), given * 3 + kept
    torch_xla.sync()
    assert aliased() == before + 1
    torch.testing.assert_close(result.cpu(), torch.arange(43.0) * 3 + 1)
    assert kept.tolist() == [1.0] * 43 and not xlac._get_buffer_donation(given)
    for use in (given.cpu, given.tolist, lambda: (given + 1).cpu()):
        with pytest.raises(RuntimeError, match="marked for donation"):
            use()
    given.copy_(torch.zeros(43))  # what is written to has values again
    assert given.tolist() == [0.0] * 43


def test_a_mark_without_a_program_takes_nothing() -> None:
    tensor = torch.arange(4.0).to("xla")
    xlac._set_buffer_donation(tensor, True)
    torch_xla.sync()
    other = torch.ones(3).to("xla") + 1  # another shape cannot take it over
    total = tensor.sum()
    torch_xla.sync()
    assert xlac._get_buffer_donation(tensor) and tensor.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (other.tolist(), total.item()) == ([2.0] * 3, 6.0)
    assert xlac._set_buffer_donation(tensor, False) and not xlac._get_buffer_donation(tensor)
    doubled = tensor * 2
    torch_xla.sync()
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0] and doubled.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_a_write_ends_the_mark_and_takes_over_what_was_there() -> None:
    tensor = torch.ones(47).to("xla")
    xlac._set_buffer_donation(tensor, True)
    before = aliased()
    with torch.no_grad():
        tensor += 1
    assert not xlac._get_buffer_donation(tensor) and not xlac._set_buffer_donation(tensor, True)
    torch_xla.sync()
    assert tensor.tolist() == [2.0] * 47 and aliased() == before + 1
    torch_xla.sync()
    assert tensor.tolist() == [2.0] * 47


def test_what_others_hold_is_not_given_away() -> None:
    tensor = torch.ones(4).to("xla")
    capsule = to_dlpack(tensor)
    assert capsule is not None and not xlac._set_buffer_donation(tensor, True)


def test_a_read_takes_marked_buffers_only_where_the_config_says_so() -> None:
    given = torch.ones(4).to("xla")
    xlac._set_buffer_donation(given, True)
    first = given + 1
    xlac._xla_sync_multi([first], [])
    assert given.tolist() == [1.0] * 4
    assert not xlac._xla_get_enable_alias_with_buffer_donor_config()
    xlac._xla_set_enable_alias_with_buffer_donor_config(True)
    assert xlac._xla_get_enable_alias_with_buffer_donor_config("xla:0")
    second, later = given + 2, given * 4
    xlac._xla_sync_multi([second], [])  # `later` reads it still
    assert given.tolist() == [1.0] * 4
    xlac._xla_sync_multi([later], [])
    assert later.tolist() == [4.0] * 4 and second.tolist() == [3.0] * 4
    with pytest.raises(RuntimeError, match="marked for donation"):
        given.cpu()


def test_in_its_context_a_plain_read_takes_over_too() -> None:
    given, other = torch.arange(41.0).to("xla"), torch.ones(41).to("xla")
    total = given + other
    xlac._set_buffer_donation(given, True)
    with alias_with_buffer_donor_config():
        before = aliased()
        other.add_(2)  # stays pending, and does not read what is given away
        assert total.tolist() == [1.0 + number for number in range(41)] and aliased() == before + 1
    assert not xlac._xla_get_enable_alias_with_buffer_donor_config() and other.tolist() == [3.0] * 41
    with pytest.raises(RuntimeError, match="marked for donation"):
        given.cpu()


def test_wrong_use() -> None:
    with pytest.raises(RuntimeError, match=r"not an XLA tensor.*\.to\('xla'\)"):
        xlac._set_buffer_donation(torch.ones(2), True)
    with pytest.raises(RuntimeError, match="no device"):
        xlac._xla_get_enable_alias_with_buffer_donor_config("TPU:77")


def test_in_eager_mode_operations_take_nothing() -> None:
    with eager_mode_context(True), alias_with_buffer_donor_config():
        given = torch.ones(4).to("xla")
        xlac._set_buffer_donation(given, True)
        assert (given * 3).tolist() == [3.0] * 4 and given.tolist() == [1.0] * 4 and xlac._get_buffer_donation(given)


def test_under_no_grad_and_autocast() -> None:
    weight = torch.nn.Parameter(torch.full((4, 4), 2.0).to("xla"))
    given = torch.ones(4, 4).to("xla")
    assert xlac._set_buffer_donation(given, True)
    with torch.no_grad(), torch.autocast("xla", torch.bfloat16):
        result = (given @ weight).float()
    torch_xla.sync()
    assert result.tolist() == [[8.0] * 4] * 4


def test_captured_calls_keep_what_is_marked() -> None:
    kept = torch.full((4,), 2.0).to("xla")
    xlac._set_buffer_donation(kept, True)

    @torch_xla.compile(capture=True)
    def step(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * kept

    for number in range(4):
        assert step(torch.full((4,), float(number)).to("xla")).tolist() == [2.0 * number] * 4
    assert kept.tolist() == [2.0] * 4

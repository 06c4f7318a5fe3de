"""Forward-mode differentiation of views: tangents get the layout of their primals, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")  # torch's own, for formulas of forward mode

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.t(),
    "one of two": lambda x: x.view(3, 4, 2)[..., 1],
    "steps": lambda x: x[::2],
    "windows": lambda x: x.as_strided((2, 3), (1, 2), 3),
    "imaginary parts": lambda x: torch.view_as_complex(x.view(3, 4, 2)).imag,
    "imaginary parts of one of two": lambda x: torch.view_as_complex(x.view(3, 4, 2))[:, 1::2].imag,
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transpose": lambda x: x.transpose(0, 1),
    "select": lambda x: x[1],
    "expand": lambda x: x.expand(2, *x.shape),
    "view": lambda x: x.unsqueeze(1),
    "diagonal": lambda x: x.diagonal(),
}


def on(device: str) -> Tensor:
    return torch.arange(24.0, dtype=torch.float64).view(3, 8).to(device)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_view_of_a_dual_tensor(layout: Callable[[Tensor], Tensor], view: Callable[[Tensor], Tensor]) -> None:
    results = []
    for device in ("cpu", "xla"):
        primal = layout(on(device))
        tangent = torch.arange(float(primal.numel()), dtype=torch.float64).view(primal.shape).to(device)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(primal, tangent)
            parts = [forward_ad.unpack_dual(each) for each in (dual, view(dual), view(dual) * view(dual))]
            results.append([(part.tangent.stride(), part.tangent.storage_offset(), part.tangent.tolist()) for part in parts])
    assert results[0] == results[1]


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_primal_that_repeats_elements_is_refused_as_on_the_cpu(repeats: int) -> None:
    for device in ("cpu", "xla"):
        primal = on(device)[:, :8:repeats][:1].expand(3, -1)
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            forward_ad.make_dual(primal, torch.ones_like(primal).contiguous())


@pytest.mark.parametrize("name", ["whole", "one of two", "imaginary parts"])
def test_zeros_in_the_layout_of_a_primal_with_batches(name: str) -> None:
    results = []
    for device in ("cpu", "xla"):
        zeros = torch.ops.aten._new_zeros_with_same_feature_meta(on(device), LAYOUTS[name](on(device)), self_num_batch_dims=1)
        results.append((zeros.shape, zeros.stride(), zeros.untyped_storage().nbytes(), zeros.cpu().any().item()))
    assert results[0] == results[1]


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_forward_over_backward_with_gradients_that_are_views(view: Callable[[Tensor], Tensor]) -> None:
    x = torch.rand(3, 3, dtype=torch.float64).to("xla").requires_grad_()
    forward = {"check_fwd_over_rev": True, "check_rev_over_rev": False, "check_undefined_grad": False}
    assert torch.autograd.gradgradcheck(lambda x: view(x) * view(x), (x,), gen_non_contig_grad_outputs=True, fast_mode=True, **forward)


def test_forward_over_backward_with_complex_gradients_that_are_views() -> None:
    x = torch.rand(3, 3, dtype=torch.complex128).to("xla").requires_grad_()
    forward = {"check_fwd_over_rev": True, "check_rev_over_rev": False, "check_undefined_grad": False}
    assert torch.autograd.gradgradcheck(torch.asin, (x,), gen_non_contig_grad_outputs=True, fast_mode=True, **forward)

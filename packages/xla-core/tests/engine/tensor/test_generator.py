"""Generators of the device: every random function takes one, draws from it and leaves the device's own state alone."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor, nn

import torch_xla.debug.metrics as met
from xla_core.abi.process import client
from xla_core.engine.tensor.generator import XLAGenerator


def ones(size: int = 4) -> Tensor:
    return torch.ones(size, device="xla")


DRAWS: dict[str, Callable[[Generator], Tensor]] = {
    "rand": lambda g: torch.rand(8, device="xla", generator=g),
    "randn": lambda g: torch.randn(8, device="xla", generator=g),
    "randint": lambda g: torch.randint(1000, (8,), device="xla", generator=g),
    "randint from": lambda g: torch.randint(5, 1000, (8,), device="xla", generator=g),
    "randperm": lambda g: torch.randperm(20, device="xla", generator=g),
    "rand_like": lambda g: torch.rand_like(ones(), generator=g),
    "randn_like": lambda g: torch.randn_like(ones(), generator=g),
    "normal": lambda g: torch.normal(0.0, 1.0, (8,), device="xla", generator=g),
    "normal of means": lambda g: torch.normal(ones(), 1.0, generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((64,), 0.5, device="xla"), generator=g),
    "multinomial": lambda g: torch.multinomial(ones(64), 8, generator=g),
    "poisson": lambda g: torch.poisson(ones(64) * 9, generator=g),
    "binomial": lambda g: torch.binomial(ones(64) * 50, torch.full((64,), 0.5, device="xla"), generator=g),
    "gamma": lambda g: torch._standard_gamma(ones(), generator=g),
    "dirichlet": lambda g: torch._sample_dirichlet(ones(), generator=g),
    "uniform_": lambda g: ones().uniform_(generator=g),
    "normal_": lambda g: ones().normal_(generator=g),
    "random_": lambda g: ones().random_(generator=g),
    "exponential_": lambda g: ones().exponential_(generator=g),
    "cauchy_": lambda g: ones().cauchy_(generator=g),
    "geometric_": lambda g: ones(64).geometric_(0.1, generator=g),
    "log_normal_": lambda g: ones().log_normal_(generator=g),
    "bernoulli_": lambda g: ones(64).bernoulli_(0.5, generator=g),
    "init": lambda g: nn.init.trunc_normal_(ones(), generator=g),
    "of a parameter": lambda g: nn.init.uniform_(nn.Parameter(ones()), generator=g).detach(),
    "rrelu": lambda g: torch.ops.aten.rrelu_with_noise(-ones(), ones(), 0.1, 0.9, True, g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_functions_draw_from_the_generator(name: str) -> None:
    generator = torch.Generator(device="xla").manual_seed(3)
    before = torch.get_device_module("xla").get_rng_state()
    first, second = DRAWS[name](generator).cpu(), DRAWS[name](generator).cpu()
    again = DRAWS[name](generator.manual_seed(3)).cpu()
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert torch.equal(torch.get_device_module("xla").get_rng_state(), before)


def test_the_same_seed_gives_what_the_device_gives() -> None:
    torch.manual_seed(11)
    of_device = torch.randn(5, device="xla").cpu()
    assert torch.equal(torch.randn(5, device="xla", generator=torch.Generator("xla").manual_seed(11)).cpu(), of_device)


def test_another_state_is_no_other_program() -> None:
    generator = torch.Generator("xla").manual_seed(0)
    torch.rand(7, device="xla", generator=generator).cpu()
    compiles = met.metric_data("CompileTime")[0]
    for _ in range(3):
        torch.rand(7, device="xla", generator=generator).cpu()
    assert met.metric_data("CompileTime")[0] == compiles


def test_states_are_kept_and_restored() -> None:
    generator = torch.Generator("xla")
    assert type(generator) is XLAGenerator and isinstance(generator, torch.Generator)
    assert generator.device == torch.device("xla:0") and torch.Generator("xla:0").device == torch.device("xla:0")
    assert generator.manual_seed(5) is generator and generator.initial_seed() == 5
    assert torch.Generator().initial_seed() == torch.Generator("xla").initial_seed()  # torch's, for new ones
    generator.draw()
    state = generator.get_state()
    copies = [
        generator.clone_state(),
        pickle.loads(pickle.dumps(generator)),
        copy.deepcopy(generator),
        generator.graphsafe_get_state(),
        torch.Generator("xla").set_state(state),
        torch.Generator("xla").graphsafe_set_state(generator),
    ]
    wanted = torch.rand(3, device="xla", generator=generator).cpu()
    assert all(torch.equal(torch.rand(3, device="xla", generator=one).cpu(), wanted) for one in copies)
    assert copies[1].initial_seed() == 5 and state.dtype == torch.uint8
    assert generator.seed() == generator.initial_seed() != torch.Generator("xla").seed()
    assert generator.manual_seed(-1).initial_seed() == 2**64 - 1
    for wrong in (torch.zeros(3, dtype=torch.uint8), torch.zeros(8)):
        with pytest.raises(ValueError, match="16 uint8"):
            generator.set_state(wrong)


def test_generators_of_another_device_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"Expected a 'xla' device type for generator but found 'cpu'.*Generator\(device='xla'\)"):
        torch.rand(2, device="xla", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="found 'cpu'"):
        ones().normal_(generator=torch.default_generator)
    assert len(client().devices) == 1
    with pytest.raises(RuntimeError, match="xla:7"):
        torch.rand(2, device="xla", generator=torch.Generator("xla:7"))


def test_torchs_own_stay_what_they_are() -> None:
    assert isinstance(torch.default_generator, torch.Generator) and torch.Generator().device.type == "cpu"
    kind = type("Mine", (torch.Generator,), {})
    assert issubclass(kind, torch.Generator) and isinstance(kind(), kind) and not isinstance(torch.Generator(), kind)
    assert torch.equal(torch.rand(2, generator=torch.Generator().manual_seed(1)), torch.rand(2, generator=kind().manual_seed(1)))

"""Torch modules and functions under JAX's transforms, against torch on the CPU and JAX itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_xla
from xla_core.abi.tensors import buffer_of, tensor_from_buffer
from xla_core.interop import checkpoint_name, to_jax

torch_xla.manual_seed(0)
close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
Arrays = dict[str, jax.Array]


class Net(nn.Module):
    """Has parameters, buffers that training changes, dropout and a tied weight."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(rate)
        self.second = nn.Linear(8, 4)
        self.tied = nn.Linear(4, 8, bias=False)
        self.tied.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.drop(torch.relu(self.norm(self.first(x)))))
        return self.second(self.tied(checkpoint_name(x, "middle") if x.device.type == "xla" else x))


@pytest.fixture
def nets() -> tuple[Net, Net]:
    torch.manual_seed(0)
    net = Net()
    return net, copy.deepcopy(net).to("xla")


INPUTS = np.random.default_rng(0).standard_normal((6, 4), np.float32)
LABELS = np.array([0, 1, 2, 3, 1, 2])


def loss_of(apply: Callable[..., Any]) -> Callable[..., Any]:
    def loss(parameters: Arrays, buffers: Arrays, x: Any, labels: Any) -> tuple[jax.Array, Arrays]:
        logits, buffers = apply(parameters, buffers, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean(), buffers

    return loss


@pytest.mark.parametrize("derivatives", ["torch", "jax"])
@pytest.mark.parametrize("transform", [lambda loss: loss, jax.jit, jax.checkpoint], ids=["eager", "jit", "checkpoint"])
def test_gradients_and_buffers(nets: tuple[Net, Net], derivatives: str, transform: Callable[..., Any]) -> None:
    cpu, net = nets
    apply, parameters, buffers = to_jax(net, derivatives=derivatives)
    expected = nn.functional.cross_entropy(cpu(torch.tensor(INPUTS)), torch.tensor(LABELS))
    expected.backward()
    (found, after), grads = jax.value_and_grad(transform(loss_of(apply)), has_aux=True)(parameters, buffers, INPUTS, LABELS)
    close(found, expected.item())
    assert grads.keys() == dict(cpu.named_parameters()).keys()
    for name, parameter in cpu.named_parameters():
        close(grads[name], parameter.grad)
    for name, buffer in cpu.named_buffers():
        close(after[name], buffer)
        assert after[name].dtype == buffers[name].dtype
    assert int(net.norm.num_batches_tracked) == 0  # the module itself is as it was


def test_parameters_are_the_modules_own_memory(nets: tuple[Net, Net]) -> None:
    _, net = nets
    parameters = to_jax(net).parameters
    assert parameters["first.weight"] is buffer_of(net.first.weight)
    assert "tied.weight" not in parameters


def test_vmap_and_gradients_per_sample(nets: tuple[Net, Net]) -> None:
    cpu, net = nets
    cpu.eval(), net.eval()
    apply, parameters, buffers = to_jax(net)
    close(jax.vmap(lambda x: apply(parameters, buffers, x[None])[0][0])(INPUTS), cpu(torch.tensor(INPUTS)).detach())
    found = jax.vmap(jax.grad(lambda p, x: apply(p, buffers, x[None])[0].sum()), (None, 0))(parameters, INPUTS)

    def of_sample(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(cpu, p, (x[None],)).sum()

    expected = torch.func.vmap(torch.func.grad(of_sample), (None, 0))(dict(cpu.named_parameters()), torch.tensor(INPUTS))
    for name, grad in expected.items():
        close(found[name], grad.detach())


def test_shard_map_sums_gradients_of_what_is_replicated(run: Callable[..., str]) -> None:
    code = """
        from functools import partial
        import jax, numpy as np, torch, torch_xla
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from xla_core.interop import to_jax

        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to("xla")
        inputs = np.random.default_rng(0).standard_normal((6, 4), np.float32)
        mesh = Mesh(np.array(jax.devices()), ("data",))
        assert mesh.size == 2
        model(torch.tensor(inputs, device="xla")).sum().backward()
        for derivatives in ("torch", "jax"):
            apply, parameters, buffers = to_jax(model, derivatives=derivatives)

            @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
            def total(parameters, x):
                return jax.lax.psum(apply(parameters, buffers, x)[0].sum(), "data")

            found = jax.jit(jax.grad(total))(jax.device_put(parameters, NamedSharding(mesh, P())), inputs)
            for name, parameter in model.named_parameters():
                np.testing.assert_allclose(found[name], parameter.grad.cpu(), rtol=1e-4, atol=1e-5)
    """
    run(code, XLA_FLAGS="--xla_force_host_platform_device_count=2")


def test_every_order_and_direction_with_jaxs_derivatives() -> None:
    def function(x: Tensor) -> Tensor:
        return (torch.sin(x) * x.roll(1)).softmax(-1)

    def of_jax(x: jax.Array) -> jax.Array:
        return jax.nn.softmax(jnp.sin(x) * jnp.roll(x, 1))

    ours, x = to_jax(function, derivatives="jax"), INPUTS[0]
    close(jax.jit(jax.hessian(ours))(x), jax.jit(jax.hessian(of_jax))(x))
    close(jax.jit(jax.jvp, static_argnums=0)(ours, (x,), (x * 2,))[1], jax.jvp(of_jax, (x,), (x * 2,))[1])
    close(jax.jit(jax.jacrev(to_jax(function)))(x), jax.jit(jax.jacfwd(of_jax))(x))
    with pytest.raises(TypeError, match="derivatives='jax'"):
        jax.hessian(to_jax(lambda x: function(x)[0]))(x)


def test_saved_by_name(nets: tuple[Net, Net]) -> None:
    apply, parameters, buffers = to_jax(nets[1].eval(), derivatives="jax")
    policy = jax.checkpoint_policies.save_only_these_names("middle")

    def saved(function: Callable[..., Any]) -> list[tuple[int, ...]]:
        pull = jax.vjp(function, parameters)[1]
        arrays = [leaf for leaf in jax.tree.leaves(pull) if isinstance(leaf, jax.Array)]
        return sorted(array.shape for array in arrays if array.shape[:1] == (6,))

    def result(p: Arrays) -> jax.Array:
        return apply(p, buffers, INPUTS)[0]

    assert saved(jax.checkpoint(result)) == []
    assert saved(jax.checkpoint(result, policy=policy)) == [(6, 4)]
    assert len(saved(result)) > 2


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return grad * 3


def under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        factor = x * 2
    return x * factor


def detached(x: Tensor) -> Tensor:
    return x * x.detach()


def forces(x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x if x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]


@pytest.mark.parametrize(
    "function", [Rounded.apply, under_no_grad, detached, forces, lambda x: x.norm(dim=-1), lambda x: torch.relu(x * 0)], ids=range(6)
)
def test_gradients_are_those_that_torch_says(function: Callable[..., Tensor]) -> None:
    given = torch.tensor(INPUTS).requires_grad_()
    [expected] = torch.autograd.grad(function(given).sum(), given)
    close(jax.grad(lambda x: to_jax(function)(x).sum())(INPUTS), expected)
    close(to_jax(function)(INPUTS), function(given).detach())


def test_what_jax_cannot_see_is_refused_or_recorded() -> None:
    for function in (Rounded.apply, under_no_grad, lambda x: x.data * x):
        with pytest.raises(RuntimeError, match="derivatives='torch'"):
            to_jax(function, derivatives="jax")(INPUTS)
    close(jax.grad(lambda x: to_jax(detached, derivatives="jax")(x).sum())(INPUTS), INPUTS)


def test_random_numbers_follow_from_the_key(nets: tuple[Net, Net]) -> None:
    net = Net(rate=0.5).to("xla")
    apply, parameters, buffers = to_jax(net)
    state = torch.xla.get_rng_state()
    with pytest.raises(ValueError, match=r"random numbers at .*test_to_jax\.py:\d+: pass rng"):
        apply(parameters, buffers, INPUTS)
    first, again, other = (jax.jit(apply)(parameters, buffers, INPUTS, rng=jax.random.key(n))[0] for n in (1, 1, 2))
    close(first, again)
    assert not np.allclose(first, other)
    keys = jax.random.split(jax.random.key(1), 3)
    masks = jax.vmap(lambda rng: to_jax(nn.Dropout(0.5)).apply({}, {}, np.ones(512, np.float32), rng=rng)[0])(keys)
    assert not np.array_equal(masks[0], masks[1])
    close(masks.mean(), 1.0, atol=0.2)
    x, key = np.ones(512, np.float32), jax.random.PRNGKey(3)
    drop = to_jax(lambda x: nn.functional.dropout(x, 0.5))
    close(jax.grad(lambda x: drop(x, rng=key).sum())(x), drop(x, rng=key))  # the same mask in both passes
    assert torch.equal(torch.xla.get_rng_state(), state)


def reads(x: Tensor) -> Tensor:
    return x if x.sum().item() > 0 else -x


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (reads, "may not read a value"),
        (lambda x: x[x > 0], "may not read a value"),
        (lambda x: x.add_(1), "writes to one of its arguments"),
    ],
    ids=["read", "size", "write"],
)
def test_what_cannot_be_traced_names_the_line(function: Callable[..., Any], match: str) -> None:
    with pytest.raises(RuntimeError, match=rf"{match}.*test_to_jax\.py:\d+"):
        jax.jit(to_jax(function))(INPUTS)


def test_arguments_and_results_are_nestings_with_constants() -> None:
    def function(batch: dict[str, Any], scale: float, *, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: batch[name][0] * scale for name in names} | {"none": None, "count": len(names), "best": batch["x"][0].argmax()}

    found = to_jax(function)({"x": [INPUTS], "y": [INPUTS + 1]}, 2.0, names=("x", "y"))
    close(found["x"], INPUTS * 2)
    close(found["y"], (INPUTS + 1) * 2)
    assert (found["none"], found["count"], int(found["best"])) == (None, 2, int(INPUTS.argmax()))
    assert found["best"].dtype == np.int32
    with jax.enable_x64(True):
        assert to_jax(torch.argmax)(INPUTS).dtype == np.int64
        close(to_jax(torch.sin)(INPUTS.astype(np.float64)), np.sin(INPUTS.astype(np.float64)), rtol=1e-12)


def test_indices_of_32_bits_are_torchs_own_kind() -> None:
    found = to_jax(nn.functional.cross_entropy)(INPUTS, LABELS.astype(np.int32))
    close(found, nn.functional.cross_entropy(torch.tensor(INPUTS), torch.tensor(LABELS)))


def test_tensors_from_outside_are_those_of_now() -> None:
    weight = torch.ones(4, device="xla") * 3  # pending when it is first seen
    function = to_jax(lambda x: x @ weight)
    close(jax.jit(function)(INPUTS), INPUTS.sum(1) * 3)
    weight.add_(1)
    close(function(INPUTS), INPUTS.sum(1) * 4)
    close(jax.grad(lambda x: function(x).sum())(INPUTS), np.full((6, 4), 4.0))


def test_runs_the_torch_code_once_for_each_signature() -> None:
    calls = []

    def function(x: Tensor) -> Tensor:
        calls.append(x.shape)
        return x * 2

    ours = to_jax(function)
    for _ in range(3):
        ours(INPUTS), ours(INPUTS[:2]), jax.jit(ours)(INPUTS)
    assert len(calls) == 2


def test_modes_at_the_call_count(nets: tuple[Net, Net]) -> None:
    _, net = nets
    apply, parameters, buffers = to_jax(net)
    assert int(apply(parameters, buffers, INPUTS)[1]["norm.num_batches_tracked"]) == 1
    net.eval()
    assert int(apply(parameters, buffers, INPUTS)[1]["norm.num_batches_tracked"]) == 0
    net.train()
    training = jax.jit(lambda p: apply(p, buffers, INPUTS)[0].sum())
    training(parameters)
    net.eval()
    jax.grad(training)(parameters)  # records the gradient of what was traced
    assert not net.norm.training


def test_complex_gradients_are_jaxs() -> None:
    z = (INPUTS[0] + 1j * INPUTS[1]).astype(np.complex64)
    expected = jax.grad(lambda z: (z * jnp.conj(z) * z).real.sum())(z)
    for derivatives in ("torch", "jax"):
        close(jax.grad(to_jax(lambda z: (z * z.conj() * z).real.sum(), derivatives=derivatives))(z), expected)


def test_refuses_what_it_is_not_for(nets: tuple[Net, Net]) -> None:
    cpu, net = nets
    with pytest.raises(ValueError, match=r"first.weight is on cpu: call .to\('xla'\)"):
        to_jax(cpu)
    with pytest.raises(TypeError, match="got a int"):
        to_jax(3)  # type: ignore[call-overload]
    apply, parameters, buffers = to_jax(net)
    with pytest.raises(ValueError, match=r"missing \['first.bias'"):
        apply({}, buffers, INPUTS)
    with pytest.raises(TypeError, match=r"give it buffer_of\(tensor\)"):
        apply(parameters, buffers, torch.ones(6, 4, device="xla"))
    with pytest.raises(TypeError, match="a set as a constant"):
        to_jax(lambda x, names: x)(INPUTS, {"a"})


def test_tensor_from_buffer_refuses_what_is_traced() -> None:
    for transform in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(TypeError, match=r"that JAX is tracing, at .*test_to_jax\.py:\d+.*to_jax"):
            transform(lambda x: tensor_from_buffer(x).sum())(jnp.float32(1) if transform is jax.grad else jnp.ones(3))

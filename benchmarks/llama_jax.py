"""The Llama of `llama.py` and its training step by hand in JAX, under the same shardings: what a plan's memory is held against."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from llama import AXIS, BETAS, CUT, OFFLOADED, RATE, Setting, Size

Params = dict[str, Any]
WEIGHT_DECAY, EPSILON = 0.01, 1e-8  # torch's


def shapes(size: Size) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Of the parameters of one layer, and of the others."""
    keys = size.key_heads * size.head
    square, inner = (size.width, size.width), (size.inner, size.width)
    layer = {
        "query": square,
        "key": (keys, size.width),
        "value": (keys, size.width),
        "out": square,
        "gate": inner,
        "up": inner,
        "down": inner[::-1],
        "norm1": (size.width,),
        "norm2": (size.width,),
    }
    words = (size.words, size.width)
    return layer, {"embed": words, "head": words, "norm": (size.width,)}


def norm(size: Size, weight: Array, x: Array) -> Array:
    """Divides by the root of the mean square, in float32."""
    exact = x.astype(jnp.float32)
    exact = exact * lax.rsqrt(jnp.square(exact).mean(-1, keepdims=True) + size.epsilon)
    return weight * exact.astype(x.dtype)


def angles(size: Size, tokens: int) -> tuple[Array, Array]:
    """Cosines and sines of the rotary embedding, f32[tokens, head]."""
    turns = jnp.outer(jnp.arange(tokens, dtype=jnp.float32), size.theta ** -(jnp.arange(0, size.head, 2, dtype=jnp.float32) / size.head))
    both = jnp.concatenate((turns, turns), -1)
    return jnp.cos(both), jnp.sin(both)


def rotated(x: Array, cos: Array, sin: Array) -> Array:
    """x[batch, heads, tokens, head], each pair of its halves turned by the angle of its position."""
    first, second = jnp.split(x, 2, -1)
    return x * cos.astype(x.dtype) + jnp.concatenate((-second, first), -1) * sin.astype(x.dtype)


def attention(size: Size, mesh: Mesh, tokens: int, kernel: str) -> Any:
    """Causal attention over [batch, heads, tokens, head] by one of JAX's kernels, each device for its sequences."""
    spec = PartitionSpec(AXIS)
    if kernel == "splash":
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

        block = min(2048, tokens)
        sizes = splash_attention_kernel.BlockSizes(
            **dict.fromkeys(("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute"), block),
            use_fused_bwd_kernel=True,
        )
        mask = splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((tokens, tokens))] * size.heads)
        call = splash_attention_kernel.make_splash_mha(mask=mask, head_shards=1, q_seq_shards=1, block_sizes=sizes)
        return jax.shard_map(jax.vmap(call), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    from jax.experimental.pallas.ops.tpu import flash_attention

    # As the published runs had them.
    rows = dict.fromkeys(("block_q", "block_q_major_dkv", "block_q_dkv", "block_q_dq"), min(2048, tokens))
    columns = dict.fromkeys(("block_k_major", "block_k", "block_k_major_dkv", "block_k_dkv", "block_k_major_dq"), min(512, tokens))
    sizes = flash_attention.BlockSizes(block_b=1, block_k_dq=min(256, tokens), **rows, **columns)

    def each(query: Array, key: Array, value: Array) -> Array:
        groups = query.shape[1] // key.shape[1]
        keys, values = (jnp.repeat(part, groups, axis=1) for part in (key, value))
        result: Array = flash_attention.flash_attention(query, keys, values, causal=True, block_sizes=sizes)
        return result

    return jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


def layer(size: Size, attend: Any, turns: tuple[Array, Array], hidden: Array, params: Params) -> Array:
    """One layer; params are its own."""
    params = jax.tree.map(lambda param: param.astype(hidden.dtype), params)
    hidden = checkpoint_name(hidden, "input")
    x = norm(size, params["norm1"], hidden)
    batch, tokens, width = x.shape
    parts = [checkpoint_name(x @ params[name].T, name) for name in ("query", "key", "value")]
    query, key, value = (part.reshape(batch, tokens, -1, size.head).swapaxes(1, 2) for part in parts)
    mixed = attend(rotated(query, *turns) / size.head**0.5, rotated(key, *turns), value)
    hidden = hidden + checkpoint_name(mixed.swapaxes(1, 2).reshape(batch, tokens, width) @ params["out"].T, "out")
    x = norm(size, params["norm2"], hidden)
    return hidden + (jax.nn.silu(x @ params["gate"].T) * (x @ params["up"].T)) @ params["down"].T


def training_program(size: Size, tokens: int, setting: Setting, mesh: Mesh) -> Any:
    """The step as a jitted function of parameters, AdamW's moments, words and labels."""
    policy = jax.checkpoint_policies.nothing_saveable
    if setting.offload:
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[], names_which_can_be_offloaded=list(OFFLOADED), offload_src="device", offload_dst="pinned_host"
        )

    def mark(hidden: Array) -> Array:
        return lax.with_sharding_constraint(hidden, NamedSharding(mesh, PartitionSpec(AXIS, None, None)))

    attend = attention(size, mesh, tokens, setting.kernel)

    def loss_of(params: Params, words: Array, labels: Array) -> Array:
        turns = angles(size, tokens)

        @partial(jax.checkpoint, prevent_cse=False, policy=policy)
        def one(hidden: Array, own: Params) -> tuple[Array, None]:
            return mark(layer(size, attend, turns, hidden, own)), None

        hidden, _ = lax.scan(one, mark(params["embed"].astype(jnp.bfloat16)[words]), params["layers"])
        last = norm(size, params["norm"].astype(jnp.bfloat16), hidden)
        logits = mark(last @ params["head"].astype(jnp.bfloat16).T).astype(jnp.float32)
        chosen = (logits * jax.nn.one_hot(labels, size.words)).sum(-1)  # a gather would keep all logits in float32
        return (jax.nn.logsumexp(logits, -1) - chosen).mean()

    def step(params: Params, moments: Params, count: Array, words: Array, labels: Array) -> tuple[Any, ...]:
        loss, grads = jax.value_and_grad(loss_of)(params, words, labels)
        count = count + 1
        first = jax.tree.map(lambda old, grad: BETAS[0] * old + (1 - BETAS[0]) * grad, moments["first"], grads)
        second = jax.tree.map(lambda old, grad: BETAS[1] * old + (1 - BETAS[1]) * grad * grad, moments["second"], grads)

        def updated(param: Array, mean: Array, square: Array) -> Array:
            scale = jnp.sqrt(square / (1 - BETAS[1] ** count).astype(square.dtype)) + EPSILON
            change = mean / (1 - BETAS[0] ** count).astype(mean.dtype) / scale
            return param * (1 - RATE * WEIGHT_DECAY) - RATE * change

        return jax.tree.map(updated, params, first, second), {"first": first, "second": second}, count, loss

    return jax.jit(step, donate_argnums=(0, 1, 2))


def described(size: Size, batch: int, tokens: int, setting: Setting, devices: Any) -> tuple[Mesh, tuple[Any, ...]]:
    """A mesh over the devices, and the arguments of `training_program` without values, with their shardings."""
    mesh = Mesh(np.array(devices), (AXIS,))

    def array(shape: tuple[int, ...], dtype: Any, *spec: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    def cut(name: str, shape: tuple[int, ...], *before: int) -> jax.ShapeDtypeStruct:
        specs = (AXIS,) if len(shape) == 1 else (AXIS, None) if CUT[name] == 0 else (None, AXIS)
        return array((*before, *shape), jnp.float32 if setting.mixed else jnp.bfloat16, *[None] * len(before), *specs)

    of_layer, others = shapes(size)
    params = {name: cut(name, shape) for name, shape in others.items()}
    params["layers"] = {name: cut(name, shape, size.layers) for name, shape in of_layer.items()}
    text = array((batch, tokens), jnp.int32, AXIS, None)
    return mesh, (params, {"first": params, "second": params}, array((), jnp.float32), text, text)

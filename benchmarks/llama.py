"""Llama: its sizes, the model and its training step on `xla` over a mesh, as `calibration.py` compiles it for TPUs.

A step is a forward and backward pass over scanned layers, which are computed again for their gradients, and AdamW. Parameters and what the
optimizer keeps of them are sharded over the axis `fsdp`, as is the batch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AXIS = "fsdp"
RATE = 3e-4
BETAS = (0.9, 0.95)
OFFLOADED = ("input", "query", "key", "value", "out")
"""What of a layer waits in the host's memory for its gradient, if anything does: its input, and what these products give."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is trained. kernel: of attention, `splash` or `flash`. mixed: parameters in float32, products in bfloat16; else all in
    bfloat16. offload: `OFFLOADED` waits in the host's memory; else only the input of a layer is kept, on the device.
    """

    kernel: str
    mixed: bool = False
    offload: bool = False

    def __str__(self) -> str:
        kept = "inputs and projections of layers on the host" if self.offload else "inputs of layers kept"
        return f"{self.kernel} attention, {'float32' if self.mixed else 'bfloat16'} parameters, {kept}"


@dataclass(frozen=True, slots=True)
class Size:
    """Layers, width of the hidden state, width inside of the feed-forward part, heads of queries and of keys, words."""

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    words: int = 128_256
    theta: float = 500_000.0
    epsilon: float = 1e-5

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @property
    def matrices(self) -> int:
        """Parameters that are factors of matrix products: all but the embedding and the norms."""
        layer = 2 * self.width * self.width + 2 * self.width * self.key_heads * self.head + 3 * self.width * self.inner
        return self.layers * layer + self.words * self.width

    def step_flops(self, batch: int, tokens: int) -> float:
        """Operations of a step without those done twice: six for each matrix parameter and token, and causal attention."""
        attention = 6 * self.layers * self.width * tokens
        return float(batch * tokens * (6 * self.matrices + attention))


SIZES = {
    "8b": Size(32, 4096, 14_336, 32, 8),
    "70b": Size(80, 8192, 28_672, 64, 8),
    "tiny": Size(2, 256, 512, 2, 1, 1024),
}

# How a parameter is cut over the axis, by the end of its name. Matrices are [out, in], as torch has them.
CUT = {"query": 0, "key": 1, "value": 1, "out": 0, "gate": 0, "up": 0, "down": 1, "embed": 0, "head": 0}


def cut_of(name: str) -> tuple[str | None, ...]:
    """The partition spec of a parameter, such as `layers.3.query.weight`."""
    kind = name.removesuffix(".weight").rpartition(".")[2]
    if kind not in CUT:
        return (AXIS,)  # of a norm
    return (AXIS, None) if CUT[kind] == 0 else (None, AXIS)


class Norm(nn.Module):
    """Divides by the root of the mean square, in float32."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size.width))
        self.epsilon = size.epsilon

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * exact.to(x.dtype)


def angles(size: Size, tokens: int, device: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, f32[tokens, head]."""
    powers = torch.arange(0, size.head, 2, dtype=torch.float32, device=device) / size.head
    turns = torch.outer(torch.arange(tokens, dtype=torch.float32, device=device), size.theta**-powers)
    both = torch.cat((turns, turns), -1)
    return both.cos(), both.sin()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x[batch, heads, tokens, head], each pair of its halves turned by the angle of its position."""
    first, second = x.chunk(2, -1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), -1) * sin.to(x.dtype)


class Layer(nn.Module):
    """Attention with fewer heads of keys than of queries, and a gated feed-forward part, each behind a norm and beside a shortcut.

    attend: over queries, keys and values [batch, heads, tokens, head]; queries come scaled. In three parts, so that what goes from one to
    the next can be kept for the gradient.
    """

    def __init__(self, size: Size, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.size, self.attend = size, attend
        keys = size.key_heads * size.head
        self.norm1, self.norm2 = Norm(size), Norm(size)
        self.query, self.out = (nn.Linear(size.width, size.width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(size.width, keys, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(size.width, size.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(size.inner, size.width, bias=False)

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, tokens, width]."""
        x = self.norm1(hidden)
        return self.query(x), self.key(x), self.value(x)

    def mixed(self, query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """What attention makes of them."""
        query, key, value = (part.unflatten(2, (-1, self.size.head)).transpose(1, 2) for part in (query, key, value))
        mixed = self.attend(rotated(query, cos, sin) / math.sqrt(self.size.head), rotated(key, cos, sin), value)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result

    def fed(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The feed-forward part."""
        hidden = hidden + mixed
        x = self.norm2(hidden)
        result: Tensor = hidden + self.down(F.silu(self.gate(x)) * self.up(x))
        return result

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return self.fed(hidden, self.mixed(*self.projected(hidden), cos, sin))


class Repeated(nn.Module):
    """A layer that is computed again for its gradient, but for what the setting keeps. mark: shards what it returns."""

    angles: tuple[Tensor, Tensor]  # set before each pass

    def __init__(self, layer: Layer, setting: Setting, mark: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.setting, self.mark = layer, setting, mark

    def forward(self, hidden: Tensor) -> Tensor:
        from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host
        from torch_xla.utils.checkpoint import checkpoint

        with torch.autocast("xla", torch.bfloat16, enabled=self.setting.mixed):
            if not self.setting.offload:
                return self.mark(cast(Tensor, checkpoint(self.layer, hidden, *self.angles)))
            with torch.autograd.graph.saved_tensors_hooks(
                lambda kept: place_to_host(kept) if kept.dim() == 3 else kept,
                lambda kept: place_to_device(kept) if kept.dim() == 3 else kept,
            ):
                parts = checkpoint(self.layer.projected, hidden, use_reentrant=False)
                mixed = checkpoint(self.layer.mixed, *parts, *self.angles, use_reentrant=False)
                return self.mark(checkpoint(self.layer.fed, hidden, mixed, use_reentrant=False))


class Llama(nn.Module):
    """Words i64[batch, tokens] → logits f32[batch, tokens, words]."""

    def __init__(
        self, size: Size, setting: Setting, attend: Callable[[Tensor, Tensor, Tensor], Tensor], mark: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.size, self.setting, self.mark = size, setting, mark
        self.embed = nn.Embedding(size.words, size.width)
        self.layers = nn.ModuleList(Repeated(Layer(size, attend), setting, mark) for _ in range(size.layers))
        self.norm = Norm(size)
        self.head = nn.Linear(size.width, size.words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        from torch_xla.experimental.scan_layers import scan_layers

        turns = angles(self.size, words.shape[1], words.device)
        for layer in self.layers:
            layer.angles = turns
        hidden = scan_layers(self.layers, self.mark(self.embed(words).to(torch.bfloat16)))
        with torch.autocast("xla", torch.bfloat16, enabled=self.setting.mixed):
            logits: Tensor = self.mark(self.head(self.norm(hidden)))
        return logits.float()


def attention(mesh: Any, kernel: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Causal attention by a kernel, each device for its sequences. kernel: `splash` or `flash`."""
    spec = (AXIS, None, None, None)
    if kernel == "splash":
        from torch_xla.experimental.splash_attention import SplashAttentionConfig, splash_attention

        config = SplashAttentionConfig(mesh=str(mesh), qkv_partition_spec=spec, segment_ids_partition_spec=(AXIS, None))
        return lambda query, key, value: splash_attention(query, key, value, config)
    from torch_xla.experimental.custom_kernel import flash_attention

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        result: Tensor = flash_attention(query, keys, values, causal=True, partition_spec=spec, mesh=mesh)
        return result

    return attend


def training_step(size: Size, batch: int, tokens: int, setting: Setting, devices: int) -> Callable[[], Tensor]:
    """A step on all devices of `xla`; returns its loss."""
    import torch_xla
    import torch_xla.distributed.spmd as xs

    mesh = xs.Mesh(range(devices), (devices,), (AXIS,))

    def mark(hidden: Tensor) -> Tensor:
        marked: Tensor = xs.mark_sharding_with_gradients(hidden, mesh, (AXIS, None, None))
        return marked

    with torch.device("meta"):
        model = Llama(size, setting, attention(mesh, setting.kernel), mark).to(torch.float32 if setting.mixed else torch.bfloat16)
    model = model.to("xla")
    for name, parameter in model.named_parameters():
        xs.mark_sharding(parameter, mesh, cut_of(name))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS)
    words, labels = (torch.zeros(batch, tokens, dtype=torch.int64).to("xla") for _ in range(2))
    for each in (words, labels):
        xs.mark_sharding(each, mesh, (AXIS, None))

    def step() -> Tensor:
        with torch_xla.step():
            loss = F.cross_entropy(model(words).flatten(0, 1), labels.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()  # or gradients would be results
        return loss

    return step

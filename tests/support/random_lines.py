"""Random programs of a few dozen lines: views of views, writes, mixed dtypes, autograd, reads in the middle.

A program is plain lines of Python over the names in `namespace`, so that one that shows a difference can be read and run by itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

import torch_xla

Tensor = torch.Tensor

SHAPES = [(4,), (2, 3), (3, 4), (2, 3, 4), (), (1, 3), (3, 3), (2, 1, 2), (0, 3), (6,)]
DTYPES = ["float32"] * 5 + ["float64", "int64", "int32", "bool", "complex64"]
MOST_TENSORS, MOST_ELEMENTS = 9, 150
LARGEST = 1e4  # whole numbers up to it, and their products, are exact in float32

# {x}, {y}, {z}: tensors; {d}, {e}: dimensions of x; {i}: a position in it; {n}: a small number, {k}: one from 1 to 3.
VIEWS = """
{x}.transpose({d}, {e})|{x}.permute({order})|{x}.t()|{x}.mT|{x}.movedim({d}, {e})|{x}.select({d}, {i})|{x}[{i}]|{x}[..., {i}]
{x}[{i}:{n}]|{x}[..., {i}::{k}]|{x}[:, {i}:]|{x}.narrow({d}, 0, {k})|{x}.expand(2, *{x}.shape)|{x}.squeeze()|{x}.squeeze({d})
{x}.unsqueeze({d})|{x}[None, ..., None]|{x}.diagonal({n}, {d}, {e})|{x}.unfold({d}, 2, {k})|{x}.reshape(-1)|{x}.reshape(2, -1)
{x}.reshape(*reversed({x}.shape))|{x}.view(-1)|{x}.view(1, *{x}.shape)|{x}.flatten(0, -1)|{x}.unflatten({d}, (1, -1))|{x}.contiguous()
{x}.view_as({x})|{x}.as_strided((2, 2), (1, 1), 0)|{x}.as_strided((2, 2), (2, 1))|{x}.real|torch.view_as_real({x})|{x}.conj()|{x}.imag
{x}.split(2, {d})[{n}]|{x}.chunk(2, {d})[0]|{x}.unbind({d})[{i}]|torch.atleast_2d({x})|{x}.expand_as({y})|{x}.swapaxes({d}, {e})
{x}.detach()|{x}.detach()|{x}.data|{x}.view(torch.int32)|torch.view_as_complex({x})|{x}[0, ..., None]|{x}[{i}, {i}]
torch.ops.aten.alias({x})|{x}.ravel()|{x}.adjoint()|torch.broadcast_to({x}, (3, *{x}.shape))|{x}.tensor_split(2, {d})[{n}]
"""
UNARY = """
-{x}|{x}.abs()|{x} * 2|{x} + 1.5|3 - {x}|{x}.square()|{x} == 1|{x} > 0|{x}.sum()|{x}.sum({d}, keepdim=True)|{x}.relu()
{x}.to(torch.float32)|{x}.to(torch.int64)|{x}.double()|{x}.bool()|{x}.clone()|torch.cat([{x}, {x}])|torch.stack([{x}, {x}], {d})
{x}.clamp(-2, 2)|{x}.tril()|{x}.flip({d})|{x}.roll(1, {d})|{x}.cumsum({d})|{x}.repeat(2, *[1] * {x}.dim())|{x}.amax({d})|{x}.max({d})[0]
{x}[torch.tensor([0, -1, 0], device=device)]|{x}.index_select({d}, torch.tensor([0, 0], device=device))|torch.zeros_like({x})
{x}.new_ones(2, 3)|{x} * torch.tensor(2)|torch.tensor(1.5) + {x}|{x} / 2|{x} // 2|{x} % 3|{x}.to(torch.float64, copy=True)
torch.utils.checkpoint.checkpoint(lambda t: t * t, {x}, use_reentrant=False)|{x}[[0, -1]]|torch.func.vmap(lambda t: t * 2)({x})
{x}.masked_fill({x} == 1, 7)|{x}.sign()|{x}.argmax({d})|{x}.any({d})|{x}.sort({d})[0]|torch.nn.functional.pad({x}, (1, 0))
"""
BINARY = """
{x} + {y}|{x} - {y}|{x} * {y}|torch.add({x}, {y}, alpha=2)|{x} != {y}|{x} < {y}|torch.where({x} > 0, {x}, {y})
torch.where({x} == 0, {y}, 2)|torch.maximum({x}, {y})|{x}.reshape(-1, 1) + {y}.reshape(1, -1)|{x} @ {y}
{x}.reshape(1, -1) @ {y}.reshape(-1, 1)|torch.cat([{x}, {y}])|{x}.gather({d}, torch.zeros_like({y}, dtype=torch.int64))
torch.addcmul({x}, {y}, {y}, value=2)|torch.lerp({x}, {y}, 0.5)|{x}.masked_fill({y} > 0, 3)|{x} & {y}|torch.stack([{x}, {y}])
{x}.to({y}.dtype)|{x}.type_as({y})|{x}.index_add({d}, torch.tensor([0], device=device), {y})
"""
WRITES = """
{x}.zero_()|{x}.fill_({n})|{x}.add_(1)|{x}.mul_(-1)|{x}.neg_()|{x}.abs_()|{x}.clamp_(-3, 3)|{x}.masked_fill_({x} == 2, 5)|{x}.relu_()
{x} += 2|{x} *= 2|{x}[{i}] = 4|{x}[...] = {n}|{x}[..., {i}::{k}] = 2|{x}[{x} == 1] = 3|{x}[torch.tensor([0, -1], device=device)] = {n}
{x}.add_({y})|{x}.sub_({y}, alpha=2)|{x}.mul_({y})|{x}.copy_({y})|{x}.copy_({y})|{x}.addcmul_({y}, {y}, value=2)|{x}.logical_and_({y})
{x} += {y}|{x} -= {y}|{x}[{i}] = {y}|{x}[..., {i}] = {y}|{x}[{i}:] = {y}|{x}[:, {i}] = {y}.sum()|{x}.masked_fill_({y} > 0, 3)
{x}[{i}] += {y}|{x}[1:] += {x}[:-1]|{x}[1:].copy_({x}[:-1])|{x}.add_({x}.flip(0))|{x}.copy_({x}.t())|{x}.lerp_({y}, 0.5)|{x}.sign_()
{x}.index_copy_({d}, torch.tensor([0], device=device), {y})|{x}.scatter_({d}, torch.zeros_like({x}, dtype=torch.int64), 3)
{x}.clamp_min_(torch.tensor(0))|{x}.add_(torch.tensor(2), alpha=3)|{x}[[0, -1]] += 1|{x} //= 2|{x}.pow_(2)|{x}[None, {i}] = {y}
{x}[..., None][{i}] = 3|{x}.swapaxes({d}, {e})[{i}] = {y}|{x}[{x} > 0] *= 2|torch._foreach_copy_([{x}], [{y}])|{x}.fill_({y}.sum())
{x}.diagonal().fill_({n})|{x}.t_()|{x}.squeeze_()|{x}.unsqueeze_({d})|{x}.transpose_({d}, {e})
{x}.index_fill_({d}, torch.tensor([0], device=device), 2)|torch.add({x}, {y}, out={z})|torch.mul({x}, 2, out={z})
torch._foreach_add_([{x}, {y}], 1)|torch._foreach_mul_([{x}, {y}], 2.0)|{x}.data.add_(1)|{x}.data = {y}|{x}.detach().mul_(2)
{x}.set_({y})|{x}.index_put_((torch.tensor([0, 0], device=device),), {y}, accumulate=True)|{x}.square_()|{x}.tril_()
"""
GRADIENTS = """
{x}.requires_grad_()|{x}.requires_grad_()|{x}.requires_grad_()|{x}.requires_grad_(False)|{x}.detach_()|{x}.retain_grad()|{x}.grad = None
{f}.sum().backward()|({f} * 2).sum().backward(retain_graph=True)|({f} * {f}).sum().backward()|{f}.sum().backward(retain_graph=True)
{f}.backward(torch.ones_like({f}))|{x}.grad.zero_()|{x}.grad.mul_(2)|{f}.register_hook(lambda gradient: gradient * 2)
torch.autograd.backward([{f}.sum(), {g}.sum()])|{f}.sum().backward(inputs=[{g}])|{x}.grad = {x}.detach().clone()
{x}.requires_grad = True
"""
OF_GRADIENTS = """
{x}.grad|torch.autograd.grad({f}.sum(), {g}, retain_graph=True)[0].clone()
torch.autograd.grad(({f} * {f}).sum(), {g}, create_graph=True)[0].clone()|torch.autograd.grad({f}.sum(), {g})[0].clone()
{f}.detach().requires_grad_()
"""
READS = """
{x}.sum().item()|{x}.tolist()|bool(({x} != 0).any())|{x}.shape|({x}.requires_grad, {x}.is_leaf)|{x}.max().item()|len({x})
"""


def _templates(text: str) -> list[str]:
    return [template for line in text.split("\n") for template in line.split("|") if template]


# How often each kind of line comes, its templates, and whether it names a new tensor.
KINDS = {
    "view": (22, _templates(VIEWS), True),
    "unary": (10, _templates(UNARY), True),
    "binary": (12, _templates(BINARY), True),
    "write": (26, _templates(WRITES), False),
    "gradient": (16, _templates(GRADIENTS), False),
    "of gradients": (4, _templates(OF_GRADIENTS), True),
    "read": (4, _templates(READS), False),
}
CREATE, SYNC = 7, 1
_LAID_OUT = [
    template for template in KINDS["view"][1] if any(word in template for word in ("shape(", "flat", "ravel", "contig", "view(", "strided"))
]
_REPLACES = [
    template
    for template in (*KINDS["write"][1], *KINDS["gradient"][1])
    if any(word in template for word in (".data = ", "set_(", "requires_grad_(False)", "detach_", ".t_(", "squeeze_(", "transpose_("))
]


def numbers(shape: tuple[int, ...], dtype: str, first: int) -> Tensor:
    """Small whole numbers on the CPU."""
    count = torch.Size(shape).numel()
    return torch.tensor([(place * 5 + first) % 7 - 3 for place in range(count)], dtype=getattr(torch, dtype)).reshape(shape).clone()


def namespace(device: str) -> dict[str, Any]:
    """The names that programs use, for one device. `reads` has what they read."""
    return {
        "torch": torch,
        "device": device,
        "numbers": lambda *args: numbers(*args).to(device),
        "sync": torch_xla.sync if device == "xla" else lambda: None,
        "reads": [],
    }


def failure(line: str, names: dict[str, Any]) -> Exception | None:
    """Run a line; returns what it raises."""
    try:
        exec(line, names)  # noqa: S102
    except Exception as error:
        return error
    return None


def tensors(names: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a program, by name."""
    return {name: value for name, value in names.items() if isinstance(value, Tensor)}


def gradient_of(tensor: Tensor) -> Tensor | None:
    """The gradient of a tensor that keeps one; None for one that may not even be asked, since a view of it was written to."""
    try:
        return tensor.grad if tensor.is_leaf or tensor.retains_grad else None
    except RuntimeError:
        return None


def ends_early(line: str) -> bool:
    """Whether nobody promises what a line leaves behind when it fails: gradients and tensors of a list that came before."""
    return "backward" in line or "autograd.grad" in line or "_foreach" in line


def program(chance: random.Random, length: int) -> list[str]:
    """Lines that run on the CPU, but for a few that raise there."""
    return _Builder(chance).lines_until(length)


class _Builder:
    """Makes lines, and runs each on the CPU: what comes next depends on what there is."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._names = namespace("cpu")
        self._lines: list[str] = []
        self._made = 0

    def lines_until(self, length: int) -> list[str]:
        for _ in range(3):
            self._create()
        while len(self._lines) < length and self._another():
            pass
        return self._lines

    def _one(self, options: Sequence[Any]) -> Any:
        return options[self._chance.randrange(len(options))]

    def _new(self) -> str:
        self._made += 1
        return f"x{self._made}"

    def _create(self) -> None:
        name, dtype = self._new(), self._one(DTYPES)
        made = f"numbers({self._one(SHAPES)}, {dtype!r}, {self._chance.randrange(7)})"
        if dtype.startswith("float") and self._chance.randrange(4) == 0:
            made = f"torch.nn.Parameter({made})"
        elif dtype.startswith(("float", "complex")) and self._chance.randrange(4) == 0:
            made = f"{made}.requires_grad_()"
        self._run(f"{name} = {made}")

    def _run(self, line: str) -> Exception | None:
        self._lines.append(line)
        return failure(line, self._names)

    def _another(self) -> bool:
        """Add a line, or none if that did not work out; False if the program has to end."""
        [kind] = self._chance.choices([*KINDS, "create", "sync"], [*[kind[0] for kind in KINDS.values()], CREATE, SYNC])
        if kind == "create":
            self._create()
        elif kind == "sync":
            self._run("sync()")
        else:
            return self._from_template(kind)
        return self._forget()

    def _from_template(self, kind: str) -> bool:
        template = self._one(KINDS[kind][1])
        places = self._places()
        x, y, z, f = (self._names[places[place]] for place in "xyzf")
        if not self._sensible(template, x, y, z) or ("create_graph" in template and not f.numel()):
            return True
        if "hook" in template and f._is_view():
            return True  # torch itself dies of some
        line = template.format(**places)
        name = self._new() if KINDS[kind][2] else ""
        line = f"{name} = {line}" if name else f"reads.append({line})" if kind == "read" else line
        if kind in ("view", "unary", "binary", "write") and self._chance.randrange(7) == 0:
            line = f"with torch.no_grad(): {line}"
        error = self._run(line)
        if error is not None:
            if ends_early(line) and self._chance.randrange(8) == 0:
                return False
            if ends_early(line) or ".view(" in line or self._chance.randrange(4):
                self._take_back()
            return True
        made = self._names.get(name)
        if name and (not isinstance(made, Tensor) or made.numel() > MOST_ELEMENTS or _largest(made) > LARGEST):
            self._take_back()
        elif not name and any(_largest(tensor) > LARGEST for tensor in tensors(self._names).values()):
            self._take_back()
        return self._forget()

    def _take_back(self) -> None:
        """Leave out the last line, and all that it did."""
        self._lines.pop()
        self._names = namespace("cpu")
        for line in self._lines:
            failure(line, self._names)

    def _places(self) -> dict[str, Any]:
        """What the placeholders of a template stand for."""
        held = tensors(self._names)
        names = list(held)
        tracked = [name for name, tensor in held.items() if tensor.requires_grad] or names
        x = self._one(names[-5:] if self._chance.randrange(2) else names)
        shape = held[x].shape
        rank = len(shape)
        d, e = (self._chance.randrange(-rank, rank) if rank else 0 for _ in range(2))
        size = shape[0] if rank else 1
        return {
            "x": x, "y": self._one(names), "z": self._one(names), "f": self._one(tracked), "g": self._one(tracked),
            "d": d, "e": e, "i": self._chance.randrange(-size, size + 1) if size else 0, "n": self._chance.randrange(-1, 4),
            "k": self._chance.randrange(1, 4), "order": tuple(self._chance.sample(range(rank), rank)),
        }  # fmt: skip

    def _sensible(self, template: str, x: Tensor, y: Tensor, z: Tensor) -> bool:
        """Whether torch says what a line does, and for every device."""
        if template in _LAID_OUT:  # a view or a copy, depending on strides, which results have of their operands on the CPU
            base = x if x._base is None else x._base
            # What as_strided shows beside a view has gradients on the CPU once it is written in place (docs/differences.md).
            whole = _dense(x) and x.numel() == base.numel()
            return base.is_contiguous() and (whole or "as_strided" not in template)
        if template in _REPLACES:
            # What autograd makes of a view that has another shape or data than when it was made, or whose base has, is an accident: it
            # goes by strides for some tensors, by the functions that made the views for others.
            return not x._is_view() and not any(other._base is x for other in tensors(self._names).values())
        if template in ("{x}.requires_grad_()", "{x}.requires_grad = True"):
            return x._base is None or x._base.requires_grad  # of other views torch knows only by strides what to do with gradients
        if "abs" in template:
            return x.dtype != torch.bool  # accelerators have it, the CPU does not
        if template in KINDS["write"][1]:
            return _is_ordered(template, x, y, z) and _has_clear_gradients(template, x, y, z)
        return True

    def _forget(self) -> bool:
        names = list(tensors(self._names))
        if len(names) > MOST_TENSORS:
            self._run(f"del {self._one(names)}")
        return True


def _largest(tensor: Tensor) -> float:
    largest = 0.0
    for part in (tensor.detach(), gradient_of(tensor)):
        if part is not None and part.numel() and part.dtype != torch.bool:
            largest = max(largest, part.abs().max().item())
    return largest


def _elements(tensor: Tensor) -> Tensor:
    """The position in memory of each element."""
    every = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size() + 1)
    return every.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _ambiguous(tensor: Tensor) -> bool:
    """Whether elements share memory in a way that torch does not refuse to write to."""
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return False
    elements = _elements(tensor)
    return elements.unique().numel() < elements.numel()


def _dense(tensor: Tensor) -> bool:
    elements = _elements(tensor)
    return elements.numel() == 0 or bool(elements.max() - elements.min() + 1 == elements.numel())


def _is_ordered(template: str, x: Tensor, y: Tensor, z: Tensor) -> bool:
    """Whether a write reads no memory that it may have written before. torch refuses some of those that do."""
    written = [x, y] if "foreach" in template else [z] if "out=" in template else [x]
    if any(_ambiguous(target) or any(_unordered(target, source) for source in (x, y)) for target in written):
        return False
    if "foreach_copy_" in template and _share_memory(x, y):
        return False
    if ("index_" in template or "clamp_min" in template) and (not x.numel() or 0 in x.stride() or _share_memory(x, y)):
        return False  # which of several errors it is depends on the memory behind
    if y.numel() == 1 and _share_memory(x, y):
        return False  # whether the CPU takes it for an overlap depends on strides, which mean nothing here
    if "{x}[1:]" in template or "{x}.t()" in template or "tril" in template:
        return x.is_contiguous()
    # torch warns of an `out=` that it resizes: others see its memory.
    return "out=" not in template or z.shape == x.shape and (y.shape == x.shape or "{y}" not in template)


def _has_clear_gradients(template: str, x: Tensor, y: Tensor, z: Tensor) -> bool:
    """Whether gradients do not depend on which kernel writes: into a tensor of another kind of numbers they do."""
    return not any(
        source.requires_grad and (source.is_complex(), source.is_floating_point()) != (x.is_complex(), x.is_floating_point())
        for source in (y, z)
    )


def _share_memory(x: Tensor, y: Tensor) -> bool:
    return bool(x.untyped_storage()._cdata == y.untyped_storage()._cdata)


def _unordered(target: Tensor, source: Tensor) -> bool:
    """Whether two tensors share memory in a way that torch does not look into: not both are dense."""
    if target is source or not _share_memory(target, source):
        return False
    if target.dtype != source.dtype:
        return True
    if (target.shape, target.stride(), target.storage_offset()) == (source.shape, source.stride(), source.storage_offset()):
        return False
    shared = set(_elements(target).flatten().tolist()) & set(_elements(source).flatten().tolist())
    return bool(shared) and not (_dense(target) and _dense(source))

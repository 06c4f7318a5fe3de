"""Bring an operation of one's own to device `xla`: recorded lazily, compiled with all around it, cached.

torch is told the schema, a kernel for the CPU and the shapes, by `torch.library`; the core is told the lowering, by `register_op`. That is
a function over jax arrays, called while a program is traced. Its `Context` says which shapes and dtypes were inferred when
the operation was recorded, and it returns exactly these.

    >>> import torch
    >>> import torch_xla
    >>> from xla_core.abi.operators import OpSpec, register_op, scalar
    >>> @torch.library.custom_op("operators_page::cube", mutates_args=(), device_types="cpu")
    ... def cube(x: torch.Tensor, scale: float) -> torch.Tensor:
    ...     return x**3 * scale
    >>> fake = cube.register_fake(lambda x, scale: torch.empty_like(x))
    >>> def lowering(context, x, scale):
    ...     return x * x * x * scalar(scale, context.dtype)
    >>> row = register_op(OpSpec("operators_page::cube", lowering, scalars=frozenset({"scale"})))
    >>> cube(torch.tensor([1.0, 2.0], device="xla"), 0.5).tolist()
    [0.5, 4.0]

`OpSpec` is the row of the operation in the core's table:

* `scalars` names the numbers that change nothing but values. They become inputs of the program at their second value, so that a schedule
  compiles nothing; `scalar(number, dtype)` is one as an array, whichever it is.
* `random=True`: the operation draws numbers, and `context.seed` is its key.
* `has_side_effects=True`: the operation acts on others, as collectives do. What ran is never computed again, no pass may remove it or
  move it past another, and a read keeps all its results.
* `accepts` may send calls to the CPU that the lowering cannot serve.
* `shapes` infers the results of a call where torch cannot; `shown_as` is the operation's name in graphs as text. Further fields, which
  `OpSpec` describes, are facts of operators of aten.

`record(operation, *arguments)` calls an overload, such as `torch.ops.operators_page.cube.default`, with tensors on the device that need no
gradient. It takes half the time of the call itself where nobody watches torch's dispatcher, and is the same call elsewhere.

A lowering may test data: `context.check(text, wrong, value)` lets the program raise RuntimeError, at a later read or sync, if any of the
booleans `wrong` is true. The row names its texts in `faults`, so that a process which loads the program from disk knows them, too:

    >>> SALES = "a price is negative: {value} cents"
    >>> @torch.library.custom_op("operators_page::total", mutates_args=(), device_types="cpu")
    ... def total(cents: torch.Tensor) -> torch.Tensor:
    ...     return cents.sum()
    >>> fake = total.register_fake(lambda cents: cents.new_empty(()))
    >>> def checked(context, cents):
    ...     context.check(SALES, cents < 0, -cents)
    ...     return cents.sum()
    >>> row = register_op(OpSpec("operators_page::total", checked, faults=(SALES,)))
    >>> try:
    ...     total(torch.tensor([250, -99], device="xla")).item()
    ... except RuntimeError as error:
    ...     print(str(error).partition(" (operators_page.total")[0])
    a price is negative: 99 cents

`context.platform` is what the program is compiled for, `cpu`, `gpu` or `tpu`, whatever devices the process has besides.
Among replicas a lowering may use the collectives of jax over the axis `REPLICA_AXIS`.

Guarantees: a lowering runs once for each new program, never per step, with 64-bit types on, whatever the user's JAX says. Its source, and
that of what it is bound to, is part of the key on disk: a changed lowering does not find programs of the old one. In-place, `out=` and
view forms follow from the functional one. `register_op` raises RegistrationError for an operation that torch does not know, or that has
a row already, unless `replace=True`.
"""

from __future__ import annotations

from xla_core.engine.placement.manual import REPLICA_AXIS
from xla_core.engine.tensor.recorded import record
from xla_core.ops.table import Context, OpSpec, register_op, scalar

__all__ = ["REPLICA_AXIS", "Context", "OpSpec", "record", "register_op", "scalar"]

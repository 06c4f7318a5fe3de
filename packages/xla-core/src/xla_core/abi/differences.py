"""How a program differs from those that are known: why it has to be compiled.

`KnownProgram.of` reads what is compared of a recorded program, and keeps nothing else of it. `explained` finds the nearest of known
programs, and gives a `ProgramDifference`: the kind of `Change`, a text with both values, the user's line, and what to do.

    >>> import torch
    >>> import torch_xla
    >>> from xla_core.abi import differences, graph
    >>> def program(size):
    ...     return differences.KnownProgram.of(graph.graph_of([torch.ones(size).to("xla").sinh()]), (), None, str(size))
    >>> difference = differences.explained(program(3), [program(4)])
    >>> difference.change.value, difference.text
    ('input shape', 'input 0 is f32[3], was f32[4], first used by aten.sinh')

Guarantees: nothing is compiled or run, and no graph, tensor or buffer is kept. Of programs that are equally near the first one given is
compared. Texts are for people, and change; a `Change` keeps its value.
"""

from __future__ import annotations

from xla_core.engine.compile.nearest import Change, KnownProgram, ProgramDifference, explained

__all__ = ["Change", "KnownProgram", "ProgramDifference", "explained"]

"""Recorded programs: see what is pending, change programs by passes before they are compiled, follow how they are built and run.

A `Graph` is frozen. It has `inputs()`, `operations()` in order and `results()`. An `Operation` has the `target` that lowers it
(`aten::mm`), its `slot` and the user's `line`; `graph.arguments(operation)` are its arguments as the schema has them, with an `Operand`,
which knows shape and dtype, in the place of each tensor. `graph.users`, `graph.maker` and `graph.results_of` go from one to the other.

    >>> import torch
    >>> import torch_xla
    >>> from xla_core.abi import graph as graph_abi
    >>> def exact_gelu_to_tanh(graph):
    ...     for operation in graph.operations():
    ...         if operation.target == "aten::gelu":
    ...             args, _ = graph.arguments(operation)
    ...             graph = graph_abi.replace(graph, operation, "aten::gelu", args[0], approximate="tanh")
    ...     return graph
    >>> x = torch.linspace(-3, 3, 7, device="xla")
    >>> end = graph_abi.register_pass(exact_gelu_to_tanh)
    >>> torch.allclose(torch.nn.functional.gelu(x).cpu(), torch.nn.functional.gelu(x.cpu(), approximate="tanh"), atol=1e-5)
    True
    >>> end()

A pass is a function of a graph that gives another one, or None to leave it. Three pure edits make another graph:

* `replace(graph, operation, target, *args, **kwargs)` puts another operation in the place of one; nothing moves;
* `insert_before(graph, operation, target, …)` gives the new graph and the new operation; what stands later moves;
* `remove(graph, operation, instead=operand)` takes one out; its users get another value.

Targets are aten operations and what `operators.register_op` brought. Shapes and dtypes are inferred as when an operation is recorded.

Guarantees: passes run where a program is compiled, or loaded from disk, never per step; registering one compiles programs anew, and the
key on disk is that of what they made. After each pass a verifier asks that inputs, results with their dtypes and shardings, donated buffers
and operations with side effects are what they were; PluginError names the pass and what is wrong, and nothing has run. Random operations
keep their random inputs. Among processes every one must register the same passes.

`graph_of` is the program that is pending, which it does not run; `texts` prints it. `capture_lines` keeps the line of each operation and
not only of each signature, which costs. `register_build_scope` enters a context while a program is built, `register_wrapper` puts a
function around the executable. That may raise `PartFirstError` before it runs anything: then what an operation needs runs first, as a
program of its own, and the rest behind it, where the program was not a captured step.
"""

from __future__ import annotations

from xla_core.base.errors import PartFirstError
from xla_core.engine.compile.build import register_build_scope, register_wrapper
from xla_core.engine.compile.passes import register_pass
from xla_core.engine.graph.view import GraphView as Graph
from xla_core.engine.graph.view import Operand, Operation
from xla_core.engine.tensor.dispatch import capture_lines
from xla_core.engine.tensor.graph_edit import insert_before, remove, replace
from xla_core.engine.tensor.interop import graph_of

__all__ = [
    "Graph",
    "Operand",
    "Operation",
    "PartFirstError",
    "capture_lines",
    "graph_of",
    "insert_before",
    "register_build_scope",
    "register_pass",
    "register_wrapper",
    "remove",
    "replace",
]

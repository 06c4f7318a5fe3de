"""Reads and writes nestings of arguments and results as texts of torch's pytree, with tuples, lists, dicts and leaves only.

Torch's own reader of these texts imports modules that they name. This reader only makes containers.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict, deque, namedtuple
from collections.abc import Iterator
from typing import Any

from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import TreeSpec, tree_flatten, treespec_children, treespec_dumps

MOST_NODES, MOST_NESTED = 100_000, 100
"""Most containers and leaves in one text, and deepest nesting."""
_PROTOCOL = 1  # torch's version of these texts
_LEAF = None  # marks a leaf in a nesting: a leaf for torch's pytree
_NODE = {"type", "context", "children_spec"}
# Subclasses, which earlier releases wrote by name, are read as plain containers.
_SEQUENCES = {
    "builtins.tuple": tuple,
    "torch.Size": tuple,
    "builtins.list": list,
    "collections.deque": list,
    "torch.fx.immutable_collections.immutable_list": list,
}
_DICTS = {"builtins.dict", "collections.OrderedDict", "torch.fx.immutable_collections.immutable_dict"}
_KEYS = (str, int, float, bool, type(None))


def plain(spec: TreeSpec, subject: str) -> TreeSpec:
    """Replace subclasses of tuples, lists and dicts in a nesting by these, and dataclasses and the like by dicts of their fields.

    subject: what has the nesting, for messages. Raises UnsupportedOperationError for other containers.
    """
    return tree_flatten(_as_plain(spec, subject, 0))[1]


def _as_plain(spec: TreeSpec, subject: str, depth: int) -> Any:
    if spec.is_leaf():
        return _LEAF
    if depth == MOST_NESTED:
        raise UnsupportedOperationError(f"{subject} of an exported program: more than {MOST_NESTED} containers are in each other")
    children = [_as_plain(child, subject, depth + 1) for child in treespec_children(spec)]
    container, context = spec.type, spec.context
    if container is namedtuple or (isinstance(container, type) and issubclass(container, tuple)):
        return tuple(children)
    if isinstance(container, type) and issubclass(container, (list, deque)):
        return children
    if container is defaultdict:
        context = context[1]
    elif dataclasses.is_dataclass(container) and isinstance(context, (list, tuple)) and len(context) == 2 and isinstance(context[0], list):
        context = context[0]  # of torch.export.register_dataclass: names of fields with values, and of fields that are None
    if not isinstance(context, (list, tuple)) or len(context) != len(children):
        raise UnsupportedOperationError(
            f"{subject} of an exported program: {getattr(container, '__name__', container)} holds tensors there, which a folder "
            "cannot say: take tuples, lists and dicts"
        )
    wrong = next((key for key in context if type(key) not in _KEYS), None)
    if wrong is not None:
        raise UnsupportedOperationError(f"{subject} of an exported program: a dict has the key {wrong!r}: take texts or numbers")
    return dict(zip(context, children, strict=True))


def dumps(spec: TreeSpec, subject: str) -> str:
    """The text of a nesting, after `plain`. Raises as `plain`, and UnsupportedOperationError for nestings that `loads` refuses."""
    text = str(treespec_dumps(plain(spec, subject), _PROTOCOL))
    try:
        loads(text)
    except ValueError as error:
        raise UnsupportedOperationError(f"{subject} of an exported program: {error}") from None
    return text


def loads(text: str) -> TreeSpec:
    """Read a nesting from a text. Raises ValueError for anything except tuples, lists, dicts and leaves, and for too large nestings."""
    data = _parsed(text)
    if not isinstance(data, list) or len(data) != 2 or type(data[0]) is not int or data[0] != _PROTOCOL:
        raise ValueError(f"a nesting is {_short(data)}, not [{_PROTOCOL}, {{…}}]")
    return tree_flatten(_read(data[1], 0, iter(range(MOST_NODES))))[1]


def _read(node: Any, depth: int, left: Iterator[int]) -> Any:
    """Read a node. left: has an item for each node that may still follow."""
    if next(left, None) is None or depth > MOST_NESTED:
        raise ValueError(f"a nesting has more than {MOST_NODES} parts, or {MOST_NESTED} containers in each other")
    if not isinstance(node, dict) or node.keys() != _NODE or not isinstance(node["children_spec"], list):
        raise ValueError(f"a nesting has the part {_short(node)}, without type, context and children_spec")
    type_name, context = node["type"], node["context"]
    children = [_read(child, depth + 1, left) for child in node["children_spec"]]
    if type_name is None and context is None and not children:
        return _LEAF
    if not isinstance(type_name, str) or type_name not in _DICTS | _SEQUENCES.keys():
        raise ValueError(f"a nesting has the type {_short(type_name)}: tuples, lists and dicts are read")
    if not isinstance(context, str):
        raise ValueError(f"a nesting has a {type_name} with the context {_short(context)}, which is no text")
    if type_name in _SEQUENCES:
        if context != "null":
            raise ValueError(f"a nesting has a {type_name} with the context {_short(context)}, not null")
        return _SEQUENCES[type_name](children)
    keys = _parsed(context)
    if not isinstance(keys, list) or len(keys) != len(children) or any(type(key) not in _KEYS for key in keys):
        raise ValueError(f"a nesting has a dict with the context {_short(context)}, not {len(children)} keys that are texts or numbers")
    nesting = dict(zip(keys, children, strict=True))
    if len(nesting) != len(keys):
        raise ValueError(f"a nesting has a dict with the context {_short(context)}, in which a key occurs twice")
    return nesting


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a nesting is {_short(text)}, which is no JSON ({error})") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no key")


def _short(value: Any) -> str:
    return repr(value)[:80]

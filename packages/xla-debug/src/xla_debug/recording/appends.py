"""Find the lines of a source file that add to a container, by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache

from xla_debug.regular_files import read_bytes

_ADDING = frozenset({"append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "put", "push"})
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def appending_line(name: str, paths: Iterable[str]) -> str | None:
    """Find the `file:line` that adds to a container, in the first file that has one; None if none does.

    name: of a variable, or of an attribute with its object, `history.losses`, which other code may know under another name. A line in a
    loop is preferred, then one in a function: code that runs once does not make a container grow.
    """
    owner, _, last = name.rpartition(".")
    for path in dict.fromkeys(paths):
        ranked_lines = _found(last, ast.Attribute if owner else ast.Name, path)
        if ranked_lines:
            return f"{path}:{min(ranked_lines)[1]}"
    return None


@lru_cache(maxsize=64)
def _found(name: str, node_type: type[ast.expr], path: str) -> list[tuple[int, int]]:
    """List (rank, line) of the code that adds to `name`; 0 is the best rank."""
    try:
        tree = ast.parse(read_bytes(path))
    except (OSError, SyntaxError, ValueError):  # a notebook's cell, a file that has changed: the line stays unknown
        return []
    ranked_lines = []
    pending: list[tuple[ast.AST, int]] = [(tree, 2)]
    while pending:
        node, rank = pending.pop()
        if isinstance(node, _LOOPS):
            rank = 0
        elif isinstance(node, _FUNCTIONS):
            rank = 1
        if any(isinstance(target, node_type) and _name(target) == name for target in map(_root_container, _added_to(node))):
            ranked_lines.append((rank, node.lineno))  # type: ignore[attr-defined]  # statements and calls have one
        pending += [(child, rank) for child in ast.iter_child_nodes(node)]
    return ranked_lines


def _added_to(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of the containers that a call or statement adds to."""
    match node:
        case ast.Call(func=ast.Attribute(value=container, attr=method)) if method in _ADDING:
            yield container
        case ast.AugAssign(target=container, op=ast.Add() | ast.BitOr()):
            yield container
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Subscript):  # losses[step] = loss
                    yield target.value
                # losses = losses + [loss], losses = [*losses, loss]
                elif isinstance(value, (ast.BinOp, ast.List, ast.Tuple)) and ast.unparse(target) in map(ast.unparse, _operands(value)):
                    yield target


def _operands(value: ast.expr) -> Iterator[ast.expr]:
    """Yield the terms of a sum, or the starred parts of a list or tuple."""
    match value:
        case ast.BinOp(left=left, right=right):
            yield from (left, right)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            yield from (part.value for part in parts if isinstance(part, ast.Starred))


def _root_container(container: ast.expr) -> ast.expr:
    """Strip subscripts: `by_name` of `by_name["a"]`."""
    while isinstance(container, ast.Subscript):
        container = container.value
    return container


def _name(container: ast.expr) -> str | None:
    """The last name of an expression: `losses` of `losses` and of `self.losses`."""
    match container:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None

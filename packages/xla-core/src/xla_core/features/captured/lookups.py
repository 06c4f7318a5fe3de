"""Finds the names that a function's code can look up: attributes, globals, environment variables."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

# Code that uses one of these may look up any attribute.
_ANY = frozenset({"__dict__", "__getattribute__", "__slots__", "asdict", "astuple", "attrgetter", "dir", "eval", "exec", "fields", "vars"})
_ASKING = frozenset({"getattr", "hasattr"})
_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})
_METHOD_BIT = sys.version_info >= (3, 12)  # of LOAD_ATTR's argument; older Pythons have LOAD_METHOD


@dataclass(frozen=True, slots=True)
class Lookups:
    """Names in code. read: attributes and globals; called: attributes that are only called; asked: constants passed to `getattr`.

    computed: whether it computes names of attributes; environment: whether it reads environment variables.
    """

    read: frozenset[str]
    called: frozenset[str]
    asked: frozenset[str]
    computed: bool
    environment: bool


@lru_cache(maxsize=4096)
def lookups(code: types.CodeType) -> Lookups:
    """Find what a function's code, and the functions defined in it, may look up."""
    read: set[str] = set()
    called: set[str] = set()
    asked: set[str] = set()
    computed = False
    for instructions in _all_instructions(code):
        for at, instruction in enumerate(instructions):
            if instruction.opname == "MATCH_CLASS":
                computed = True
            if instruction.opcode not in dis.hasname:
                continue
            name = instruction.argval
            (called if _is_call(instruction) else read).add(name)
            if name in _ASKING and instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                constant = _constant_name(instructions, at)
                computed = computed or constant is None
                asked.update(() if constant is None else (constant,))
    names = read | called
    return Lookups(
        frozenset(read | asked),
        frozenset(called),
        frozenset(asked),
        computed or not names.isdisjoint(_ANY),
        not names.isdisjoint(_ENVIRONMENT),
    )


def _all_instructions(code: types.CodeType) -> Iterator[list[dis.Instruction]]:
    yield list(dis.get_instructions(code))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _all_instructions(constant)


def _is_call(instruction: dis.Instruction) -> bool:
    """Whether an instruction looks up an attribute to call it at once."""
    if _METHOD_BIT:
        return instruction.opname == "LOAD_ATTR" and bool((instruction.arg or 0) & 1)
    return instruction.opname == "LOAD_METHOD"


def _constant_name(instructions: list[dis.Instruction], at: int) -> str | None:
    """The second argument of a `getattr` call; None if it is not a constant. at: index of the instruction that loads `getattr`."""
    depth = 0
    for index in range(at + 1, len(instructions) - 1):
        instruction = instructions[index]
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            return None
        if instruction.opname == "PUSH_NULL":
            continue
        depth += dis.stack_effect(instruction.opcode, instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None)
        if depth >= 2:
            constant = instruction.opname == "LOAD_CONST" and depth == 2 and type(instruction.argval) is str
            return str(instruction.argval) if constant and _is_left(instructions[index + 1 :]) else None
    return None


def _is_left(follow: list[dis.Instruction]) -> bool:
    """Whether a constant reaches a call unchanged, with at most a default loaded in between."""
    if follow[0].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return False
    end = next(instruction.opname for instruction in follow if not instruction.opname.startswith("LOAD_"))
    return end.startswith(("CALL", "PRECALL"))

"""Finds the names that a function's code can look up: attributes, globals, environment variables."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

# Code that uses one of these may look up any attribute.
_ANY = frozenset({"__dict__", "__getattribute__", "__slots__", "asdict", "astuple", "attrgetter", "dir", "eval", "exec", "fields", "vars"})
_ANY_GLOBAL = frozenset({"globals", "eval", "exec"})
_ASKING = frozenset({"getattr", "hasattr"})
_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_SET_GLOBAL = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_SET_ATTRIBUTE = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_SETTING = frozenset({"STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "STORE_NAME"})


@dataclass(frozen=True, slots=True)
class Lookups:
    """Names in code.

    imports: modules that it imports; asked: attributes that it asks for by `getattr` and `hasattr`; variables, attributes: that it reads,
    or asks for; set_variables (globals), set_attributes: that it sets. computed: whether it computes names of attributes; computed_globals:
    of global variables; environment: whether it reads environment variables; formats: whether it may put numbers into a text by `%`.
    """

    imports: frozenset[str]
    asked: frozenset[str]
    variables: frozenset[str]
    set_variables: frozenset[str]
    attributes: frozenset[str]
    set_attributes: frozenset[str]
    computed: bool
    computed_globals: bool
    environment: bool
    formats: bool


@lru_cache(maxsize=4096)
def lookups(code: types.CodeType) -> Lookups:
    """Find what a function's code may look up. Functions defined in it are looked at when they run."""
    imports: set[str] = set()
    asked: set[str] = set()
    variables: set[str] = set()
    set_variables: set[str] = set()
    attributes: set[str] = set()
    set_attributes: set[str] = set()
    computed = False
    instructions = list(dis.get_instructions(code))
    for at, instruction in enumerate(instructions):
        if instruction.opname == "MATCH_CLASS":
            computed = True
            variables.add("isinstance")  # which it asks in C
        if instruction.opcode not in dis.hasname:
            continue
        name = instruction.argval
        if instruction.opname == "IMPORT_NAME":
            imports.add(name)
        elif instruction.opname in _GLOBAL:
            variables.add(name)
        elif instruction.opname in _SET_GLOBAL:
            set_variables.add(name)
        elif instruction.opname in _SET_ATTRIBUTE:
            set_attributes.add(name)
        else:
            attributes.add(name)
        if name in _ASKING and instruction.opname in _GLOBAL:
            constant = _constant_name(instructions, at)
            computed = computed or constant is None
            asked.update(() if constant is None else (constant,))
    attributes |= asked
    names = variables | attributes
    return Lookups(
        frozenset(imports),
        frozenset(asked),
        frozenset(variables),
        frozenset(set_variables),
        frozenset(attributes),
        frozenset(set_attributes),
        computed or not names.isdisjoint(_ANY),
        not variables.isdisjoint(_ANY_GLOBAL),
        not names.isdisjoint(_ENVIRONMENT),
        _formats(code, instructions),
    )


def _formats(code: types.CodeType, instructions: list[dis.Instruction]) -> bool:
    """Whether code may put numbers into a text by `%`."""
    texts = code.co_consts[code.co_name != "<lambda>" :]  # the first one may be the docstring
    return any(isinstance(text, str) and "%" in text for text in texts) and any(
        instruction.opname == "BINARY_OP" and instruction.argrepr in ("%", "%=") for instruction in instructions
    )


def line_that_sets(codes: Iterable[types.CodeType], name: Any) -> str | None:
    """`file:line` of the first instruction of these functions that sets a variable or an attribute of this name."""
    for code in codes:
        line = None
        for instruction in dis.get_instructions(code):
            line = instruction.starts_line if type(instruction.starts_line) is int else getattr(instruction, "line_number", line) or line
            if instruction.opname in _SETTING and instruction.argval == name:
                return f"{code.co_filename}:{line}"
    return None


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

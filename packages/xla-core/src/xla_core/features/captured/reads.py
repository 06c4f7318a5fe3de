"""Finds what the Python of a recorded call reads and changes that was there before: attributes, variables, containers, arrays on the host.

Attributes of objects are seen when they are looked up (`watching.py`). What Python looks up without telling, such as variables and
attributes of classes and modules, is found by the names in the code of the functions that run, which a profile hook sees.
"""

from __future__ import annotations

import builtins
import gc
import math
import os
import random
import sys
import types
import weakref
from collections.abc import Callable, Container, Iterable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from xla_core.base.private_torch import backward_entry
from xla_core.engine.runtime.source_location import is_users
from xla_core.features.captured import hooks, iterators, watching
from xla_core.features.captured.escapes import escape
from xla_core.features.captured.kinds import OF_OPTIMIZERS, note
from xla_core.features.captured.lookups import Lookups, lookups
from xla_core.features.captured.objects import Assumed, Known, Objects
from xla_core.features.captured.places import ABSENT, Cell, ClassItem, Item, instance_dict, of_class
from xla_core.features.captured.user_code import classes_of_user, is_class_of_user, is_installed, is_of_user, line_of

_GROWING = frozenset(
    {"append", "extend", "insert", "add", "update", "appendleft", "setdefault", "pop", "popleft", "clear", "remove", "discard"}
)
_WHOLE = frozenset({"__dict__", "__getstate__", "__reduce__", "__reduce_ex__"})
"""Who looks up one of these may read all attributes: `vars`, `copy`, `pickle`."""
_BUILTINS = vars(builtins)
_MODULE_FILE = sys.modules["torch.nn.modules.module"].__file__
_BACKWARD = backward_entry.__code__


class Reads:
    """Follows one call in this thread, from `start` to `stop`. passed: keys of places whose values the call takes as arguments.

    opened: ids of objects that are taken apart; on_tensor: called with each tensor of the device that is found, before the call does
    something with it. objects: what was there before; codes: what the functions that ran can look up; lines: where a container was changed
    by a method, by its id; problems: reasons not to capture the call.
    """

    def __init__(self, passed: Iterable[tuple[Any, ...]], opened: Container[int], on_tensor: Callable[[torch.Tensor], None]) -> None:
        self.objects = Objects(passed, opened, on_tensor, note)
        self.problems: list[str] = []
        self.codes: dict[types.CodeType, Lookups] = {}
        self.lines: dict[int, str] = {}
        self._made: set[int] = set()  # objects that the call makes
        self._assumed: dict[int, Assumed] = {}
        self._mark = object()  # in the nodes of graphs that the call has gone backward through; to keep them would keep tensors
        self._looked_up: set[tuple[int, str]] = set()
        self._kinds: dict[types.CodeType, bool] = {}
        self._following = False

    # What runs

    def start(self) -> bool:
        """Begin to follow. Returns False if a profiler runs in this thread, which cannot be replaced."""
        if sys.getprofile() is not None:
            return False
        self._following = True
        self._random_states = iterators.random_states()
        watching.start(self.looked_up)
        for cls in classes_of_user():
            watching.watch(cls)
        sys.setprofile(self._profile)
        return True

    def forget_ended(self) -> None:
        """Drop what was noted of objects that have ended: the call has made them."""
        for key, assumed in list(self._assumed.items()):
            if assumed.reference() is None:
                self._forget(key, assumed)

    def end(self) -> None:
        """Let go of what was needed during the call only."""
        self.objects.end()
        self._assumed.clear()

    def was_made(self, value: Any) -> bool:
        """Whether the call has made an object."""
        return id(value) in self._made and not self.objects.is_known(value)

    def observe_roots(self, roots: Iterable[tuple[str, Any]]) -> None:
        """Note the function, and objects among its arguments."""
        with watching.silence():
            for name, root in [*roots, *[("a hook", hook) for hook in hooks.of_everything()]]:
                self.objects.observe(root, name)

    def stop(self) -> None:
        """End it."""
        if not self._following:
            return
        self._following = False
        sys.setprofile(None)
        watching.stop()
        self.forget_ended()
        self.problems += self.objects.iterators.advanced()
        self.problems += iterators.drawn(self._random_states)

    def _profile(self, frame: types.FrameType, event: str, called: Any) -> None:
        if event == "call":
            code = frame.f_code
            kind = self._kinds.get(code)
            if kind is None:
                kind = self._kinds[code] = is_users(code.co_filename) and is_of_user(frame.f_globals.get("__name__") or "")
                if kind:
                    with watching.silence():
                        self._ran(code, frame)
            if code.co_name == "__init__" and code.co_argcount:
                self._made.add(id(frame.f_locals[code.co_varnames[0]]))
            elif code is _BACKWARD:
                self._went_backward(frame.f_locals)
        elif event == "c_call":
            owner = getattr(called, "__self__", None)
            if isinstance(owner, random.Random) and called.__name__ in ("random", "getrandbits"):
                line = line_of(frame)
                if line is not None:
                    self.problems.append(
                        f"it draws one of Python's random numbers (at {line}): draw it before the call, and give it as an argument"
                    )
            elif called is open:
                line = line_of(frame, of_user=True)
                if line is not None:
                    self.problems.append(f"it opens a file (at {line}): do that before the call, or behind it")
            elif id(owner) in self.objects.containers and called.__name__ in _GROWING:
                self.lines.setdefault(id(owner), line_of(frame) or "")

    def _ran(self, code: types.CodeType, frame: types.FrameType) -> None:
        """A function of the user's runs for the first time."""
        if code.co_name == "__del__" or any(getattr(callback, "__code__", None) is code for callback in gc.callbacks):
            return  # at any time, for nobody
        found = self.codes[code] = lookups(code)
        variables = frame.f_globals
        for name in sorted(found.variables | found.set_variables):
            if name in variables or name in found.set_variables:
                self.objects.place(Item(variables, name), name, name in found.variables)
        self.objects.escape = self.objects.escape or escape(found, variables)
        if code.co_freevars:
            self._variables(code, frame)
        for name in found.variables - variables.keys():
            self.objects.place(Item(variables, name), name, True)  # which may appear, or hide what Python has
            if name in _BUILTINS:
                self.objects.note(Item(_BUILTINS, name), name)
        for name in found.imports:
            self.objects.observe(sys.modules.get(name), name)
        for name in found.variables & variables.keys():
            self._of_library(variables[name], name, found.attributes)
        for name in [key for key in variables if not key.startswith("__")] if found.computed_globals else ():
            self.objects.place(Item(variables, name), name, True)
        if found.environment:
            self.objects.observe(vars(os.environ)["_data"], "os.environ")
        self.objects.name_attributes(
            found.attributes, found.set_attributes, found.asked, found.computed and not is_installed(code.co_filename)
        )

    def _of_library(self, module: Any, name: str, attributes: frozenset[str]) -> None:
        """Note those attributes of a library's module that code names: somebody may replace them, or set what they hold."""
        if not isinstance(module, types.ModuleType) or module is math:
            return
        for key in attributes & vars(module).keys():
            value, label = vars(module)[key], f"{name}.{key}"
            if not is_of_user(module.__name__):
                if self.objects.note(Item(vars(module), key), label):
                    self._of_library(value, label, attributes)
            elif is_installed(vars(module).get("__file__") or ""):
                self.objects.place(Item(vars(module), key), label, True)
                self._of_library(value, label, attributes)

    def _variables(self, code: types.CodeType, frame: types.FrameType) -> None:
        """Note the variables of enclosing functions that a function uses."""
        values = frame.f_locals
        for function in self.objects.functions.get(code, ()):
            cells = [Cell(cell) for cell in function.__closure__ or ()]
            if all(values.get(name, ABSENT) is cell.get() for name, cell in zip(code.co_freevars, cells, strict=True)):
                for name, cell in zip(code.co_freevars, cells, strict=True):
                    self.objects.place(cell, name, True)
                return
        if not any(code in each.co_consts for each in self.codes):
            # It was reached in a way that is not followed, and the call has not made it.
            for function in gc.get_referrers(code):
                if isinstance(function, types.FunctionType):
                    for name, variable in zip(code.co_freevars, function.__closure__ or (), strict=True):
                        self.objects.place(Cell(variable), name, True)

    # What is looked up

    def looked_up(self, instance: Any, name: str) -> None:
        """An attribute is looked up, of an object of a watched class."""
        if name.startswith("__") and name not in _WHOLE:
            return
        by_module = sys._getframe(2).f_code.co_filename == _MODULE_FILE
        if by_module and name != "forward":
            return  # hooks and submodules are noted with the module
        known = self.objects.instances.get(id(instance))
        assumed = self._assumed.get(id(instance))
        if assumed is not None and assumed.reference() is not instance:
            self._forget(id(instance), assumed)
            known = assumed = None
        if known is None:
            if id(instance) in self._made or type(instance).__module__.partition(".")[0] in sys.stdlib_module_names:
                return
            if id(instance) in self.objects.opened:
                self._attribute_of_class(instance, name)
                return
            try:
                assumed = self._assumed[id(instance)] = Assumed(weakref.ref(instance))
            except TypeError:  # its class has no weak references
                self.objects.seen[id(instance)] = instance
            known = self.objects.instance(instance, type(instance).__name__, instance_dict(instance))
        if isinstance(instance, Optimizer) and name in OF_OPTIMIZERS:
            return
        self.objects.assuming = assumed
        if name not in _WHOLE:
            self._attribute(instance, known, name)
        elif known.attributes is not None:
            self.objects.names_of(known.attributes, known.name, tuple(known.before))
            for each in list(known.attributes):
                self._attribute(instance, known, each)
        self.objects.assuming = None

    def _forget(self, key: int, assumed: Assumed) -> None:
        """Drop what was noted of an object that has ended."""
        self.objects.instances.pop(key, None)
        del self._assumed[key]
        self.objects.forget(assumed)

    def _attribute(self, instance: Any, known: Known, name: str) -> None:
        attributes = known.attributes
        if (id(instance), name) in self._looked_up:
            return
        self._looked_up.add((id(instance), name))
        label = f"{known.name}.{name}"
        declared = of_class(type(instance), name)
        if name in known.slots:
            slot, before = known.slots[name]
            self.objects.place(slot, label, slot.get() is before, before)
        elif attributes is not None and name in attributes and not _is_data_descriptor(declared):
            before = known.before.get(name, ABSENT)
            self.objects.place(Item(attributes, name), label, before is attributes[name], before)
        elif declared is not None:
            if attributes is not None and (not _is_data_descriptor(declared) or is_class_of_user(type(declared[1]))):
                before = known.before.get(name, ABSENT)  # where descriptors of users keep their values, too
                self.objects.place(Item(attributes, name), label, attributes.get(name, ABSENT) is before, before)
            self._attribute_of_class(instance, name)
        elif attributes is not None and not (isinstance(instance, torch.nn.Module) and _has_member(attributes, name)):
            self.objects.place(Item(attributes, name), label, name not in known.before, known.before.get(name, ABSENT))
            self._attribute_of_class(instance, name)

    def _attribute_of_class(self, instance: Any, name: str) -> None:
        present = False
        for cls in type(instance).__mro__:
            if name in vars(cls) or not present:
                if is_class_of_user(cls):
                    self.objects.place(ClassItem(cls, name), f"{cls.__name__}.{name}", True)
                elif name == "forward":
                    self.objects.note(ClassItem(cls, name), f"{cls.__name__}.{name}")
            present = present or name in vars(cls)

    # What the call returns

    def graph_is_gone(self, tensor: torch.Tensor) -> bool:
        """Whether the call has gone backward through the graph of a tensor, so that nobody else can."""
        return any(self._mark in node.metadata for node in _nodes([tensor]))

    def _went_backward(self, variables: dict[str, Any]) -> None:
        options = variables.get("args", ())
        if len(options) < 2 or not options[1]:  # the graph is not retained
            for node in _nodes(variables.get("t_outputs", ())):
                node.metadata[self._mark] = True


def _nodes(tensors: Iterable[Any]) -> list[Any]:
    """The nodes of the graphs of tensors, but for those that add up gradients, which several graphs share."""
    waiting = [tensor.grad_fn for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None]
    nodes: dict[int, Any] = {}
    while waiting:
        node = waiting.pop()
        if id(node) not in nodes:
            nodes[id(node)] = node
            waiting += [inner for inner, _ in node.next_functions if inner is not None and not hasattr(inner, "variable")]
    return list(nodes.values())


def _is_data_descriptor(declared: tuple[type, Any] | None) -> bool:
    return declared is not None and (isinstance(declared[1], property) or hasattr(type(declared[1]), "__set__"))


def _has_member(attributes: dict[str, Any], name: str) -> bool:
    return any(name in attributes.get(key, ()) for key in hooks.MEMBERS)

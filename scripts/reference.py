"""Write docs/reference/: the public API as Markdown, from the signatures and docstrings that the installed packages show.

usage: python scripts/reference.py [--check]

The modules are found by walking packages/*/src; their names are `__all__`. They are imported and inspected, because many names
are served by another wheel at first use, which reading the sources would not see. `--check` writes nothing and fails if a page is
stale or a public name has no docstring.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ForwardRef, NamedTuple, get_origin

import torch

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/reference"
COMMAND = "hatch run reference"
# Public besides `torch_xla`: what integrators import, and what the other wheels offer under their own names.
DOORS = ("xla_core.abi", "xla_core.testing", "xla_debug", "xla_debug.telemetry", "xla_distributed", "xla_serialization", "xla_spmd")
# Modules with a page of their own, with what is below them; every other one shares the page of its first two names.
PAGES = ("torch_xla.core.xla_model", "torch_xla.core.functions", "torch_xla.distributed.spmd")
OURS = ("torch_xla", "xla_core", "xla_debug", "xla_distributed", "xla_serialization", "xla_spmd")
WIDTH = 100


class Entry(NamedTuple):
    """A public name and what it stands for."""

    module: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        """The name in full."""
        return f"{self.module}.{self.name}"

    @property
    def documented(self) -> bool:
        """True for functions and classes, which have a docstring; a constant shows its value."""
        return isinstance(self.value, type) or inspect.isroutine(self.value)


@dataclass(frozen=True, slots=True)
class Module:
    """A public module: its docstring, its names in the order of the alphabet, and the package that ships it."""

    name: str
    doc: str
    entries: tuple[Entry, ...]
    package: str = ""

    @property
    def page(self) -> str:
        """The name of its page, without `.md`."""
        for prefix in PAGES:
            if self.name == prefix or self.name.startswith(f"{prefix}."):
                return prefix
        return ".".join(self.name.split(".")[:2]) if self.name.startswith(("torch_xla.", "xla_core.")) else self.name


def module_names() -> dict[str, str]:
    """The public modules in the sources, below `torch_xla` and the doors of the other names, and the package of each; parents first."""
    found = {}
    for source in ROOT.glob("packages/*/src"):
        for file in source.rglob("*.py"):
            parts = file.relative_to(source).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            door = name in DOORS or name.startswith("xla_core.abi.")
            if (door or parts[0] == "torch_xla") and not any(part.startswith("_") for part in name.split(".")):
                found[name] = source.parent.name
    return dict(sorted(found.items()))


def load(name: str, package: str) -> Module:
    """Import a module and look up its public names."""
    module = importlib.import_module(name)
    public = sorted((each for each in getattr(module, "__all__", ()) if not each.startswith("_")), key=lambda each: (each.lower(), each))
    return Module(name, inspect.getdoc(module) or "", tuple(Entry(name, each, getattr(module, each)) for each in public), package)


def shown_annotation(value: Any) -> str:
    """A type hint as it is written in the source."""
    if isinstance(value, str):
        return value
    return value.__forward_arg__ if isinstance(value, ForwardRef) else inspect.formatannotation(value)


def shown_value(value: Any) -> str:
    """A constant or a default, the same in every process and on every machine; its type alone where its text would not be."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type) or inspect.isroutine(value):
        return str(getattr(value, "__qualname__", value))
    if get_origin(value) is not None:  # another name for a type
        return re.sub(r"\b(\w+\.)+(?=[A-Z])", "", repr(value))
    if isinstance(value, frozenset) and value:  # which has no order of its own
        return f"frozenset({{{', '.join(sorted(map(shown_value, value)))}}})"
    if isinstance(value, (bool, int, float, complex, str, bytes, tuple, frozenset, torch.dtype)) or value is None:
        return repr(value)
    return "<factory>" if repr(value) == "<factory>" else f"<{type(value).__name__}>"


_STARS: Mapping[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def shown_parameters(signature: inspect.Signature) -> Iterator[str]:
    """The parameters of a signature with the marks `/` and `*` between them."""
    previous = None
    for parameter in signature.parameters.values():
        kind = parameter.kind
        if previous is inspect.Parameter.POSITIONAL_ONLY is not kind:
            yield "/"
        if kind is inspect.Parameter.KEYWORD_ONLY and previous not in (kind, inspect.Parameter.VAR_POSITIONAL):
            yield "*"
        previous = kind
        text = _STARS.get(kind, "") + parameter.name
        hinted = parameter.annotation is not parameter.empty
        if hinted:
            text += f": {shown_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f"{' = ' if hinted else '='}{shown_value(parameter.default)}"
        yield text
    if previous is inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


def shown_signature(name: str, function: Callable[..., Any], bound: bool, width: int = WIDTH) -> str:
    """`name(parameters) -> result`, one parameter a line where that is long. bound: the first parameter is `self` or `cls`."""
    signature = inspect.signature(function)
    if bound:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    parameters = list(shown_parameters(signature))
    hinted = signature.return_annotation is not signature.empty
    result = f" -> {shown_annotation(signature.return_annotation)}" if hinted else ""
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) <= width:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in parameters), f"){result}"])


def is_ours(value: Any) -> bool:
    """True for what is defined in these packages, not inherited from torch or Python."""
    return str(getattr(value, "__module__", "")).split(".")[0] in OURS


def own_doc(value: Any) -> str:
    """The docstring that is written at a function or class; none for those that Python makes up."""
    doc = value.__doc__
    name = getattr(value, "__name__", "")
    return "" if not isinstance(doc, str) or doc.startswith((f"{name}(", "Create and return a new object")) else inspect.cleandoc(doc)


def class_signature(name: str, cls: type) -> str:
    """How a class is called, if it is called at all."""
    makers = [vars(base).get(maker) for base in cls.__mro__ if is_ours(base) for maker in ("__init__", "__new__")]
    if issubclass(cls, (enum.Enum, BaseException)) or not any(makers):
        return f"class {name}"
    return re.sub(r"\)( -> .*)?$", ")", shown_signature(f"class {name}", cls, bound=False))


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class and its bases in these packages, by name; what a class overrides comes once."""
    seen: dict[str, Any] = {}
    for base in cls.__mro__:
        if is_ours(base):
            for name, member in vars(base).items():
                if name != "__init__" and not name.startswith("_"):
                    seen.setdefault(name, member)
    for name, member in sorted(seen.items()):
        if isinstance(member, (staticmethod, classmethod, property)) or inspect.isfunction(member):
            yield name, member


def member_line(cls: type, name: str, member: Any) -> str:
    """A method or property in one item: how it is called, and its docstring, which may be that of the class it overrides."""
    if isinstance(member, property):
        function, hint = member.fget, inspect.signature(member.fget or len).return_annotation
        shown = name if hint is inspect.Signature.empty else f"{name}: {shown_annotation(hint)}"
    else:
        function = inspect.unwrap(member.__func__ if isinstance(member, (staticmethod, classmethod)) else member)
        shown = shown_signature(name, function, bound=not isinstance(member, staticmethod), width=sys.maxsize)
    inherited = (own_doc(vars(base)[name]) for base in cls.__mro__[1:] if name in vars(base))
    doc = own_doc(function) or next((doc for doc in inherited if doc), "")
    lines = "".join(f"\n    {line}" if line else "\n" for line in prose(doc).split("\n"))
    return f"- `{shown}`" + (f"  {lines}" if doc else "") + ("\n" if "\n\n" in doc else "")  # behind paragraphs, the next item needs a line


def prose(doc: str) -> str:
    """A docstring as Markdown. Stars and angle brackets that are no code show, but for stars of lists; each argument starts a line."""
    parts = re.split(r"(``.*?``|`[^`]*`)", doc, flags=re.S)
    parts[::2] = [re.sub(r"(?!^\* )([*<])", r"\\\1", part, flags=re.M) for part in parts[::2]]
    return re.sub(r"(?<=\S)\n(?=\w+(?:, \w+)*: |Raises|Returns)", "  \n", "".join(parts))


def first_line(doc: str) -> str:
    """The first line of a docstring, for a cell of a table."""
    return prose(doc.strip().partition("\n")[0]).replace("|", "\\|")


def class_fields(cls: type) -> list[str]:
    """The values of an enum, or the fields of a typed dictionary, as items."""
    if issubclass(cls, enum.Enum):
        return [f"- `{member.name}` = `{shown_value(member.value)}`" for member in cls]
    if issubclass(cls, dict) and hasattr(cls, "__total__"):
        return [f"- `{name}`: `{shown_annotation(hint)}`" for name, hint in cls.__annotations__.items()]
    return []


def anchor(entry: Entry) -> str:
    """The place of an entry in its page."""
    return entry.path.replace(".", "-").lower()


def full_entry(entry: Entry) -> list[str]:
    """The lines of one function or class: heading, signature, docstring, methods."""
    value = entry.value
    doc = own_doc(value)
    lines = [f'<a id="{anchor(entry)}"></a>', "", f"### `{entry.name}`", "", "```py"]
    if isinstance(value, type):
        listed = [*class_fields(value), *(member_line(value, *member) for member in members(value))]
        lines += [class_signature(entry.name, value), "```", "", prose(doc), ""]
        return [*lines, *listed, ""] if listed else lines
    return [*lines, shown_signature(entry.name, value, bound=False), "```", "", prose(doc), ""]


def row(entry: Entry, homes: Mapping[int, tuple[str, Entry]], page: str, pages: Mapping[str, str]) -> str:
    """The line of a name in its module's table. homes: the page and entry of each function and class; pages: by module."""
    if isinstance(entry.value, types.ModuleType):
        name = entry.value.__name__
        place = f"[`{name}`]({pages[name]}.md)" if name in pages else f"`{name}`"
        return f"| `{entry.name}` | the module {place} |"
    if not entry.documented:
        value = shown_value(entry.value).replace("|", "\\|")
        return f"| `{entry.name}` | `{value}` |"
    where, first = homes[id(entry.value)]
    target = f"{'' if where == page else f'{where}.md'}#{anchor(first)}"
    also = f"The same as `{first.path}`. " if first != entry else ""
    return f"| [`{entry.name}`]({target}) | {also}{first_line(own_doc(entry.value))} |"


def page_text(page: str, modules: Sequence[Module], homes: Mapping[int, tuple[str, Entry]], pages: Mapping[str, str]) -> str:
    """One page: every module with docstring, table of names, and the entries that are not described elsewhere."""
    lines = [f"# {page}", "", f"Written by `{COMMAND}`. [All pages](index.md).", ""]
    for module in modules:
        lines += [f"## {module.name}", "", prose(module.doc), ""]
        if module.entries:
            lines += ["| name | |", "|---|---|", *(row(entry, homes, page, pages) for entry in module.entries), ""]
        for entry in module.entries:
            if entry.documented and homes[id(entry.value)][1] == entry:
                lines += full_entry(entry)
    return "\n".join(lines).rstrip() + "\n"


INTRODUCTION = f"""\
# Reference

Every public name of the five packages, from its signature and docstring. A name that stands in several modules is described once; the
others lead there. Environment variables are in [settings](../settings.md), the format of checkpoints is in
[FORMAT.md](../../packages/xla-serialization/FORMAT.md). Written by `{COMMAND}`.
"""


def index_text(modules: Sequence[Module]) -> str:
    """The page that leads to the others, package by package."""
    lines = [INTRODUCTION]
    for package in dict.fromkeys(each.package for each in modules):
        lines += [f"## {package}", "", "| module | names | |", "|---|---|---|"]
        mine = (each for each in modules if each.package == package)
        lines += [*(f"| [`{each.name}`]({each.page}.md) | {len(each.entries)} | {first_line(each.doc)} |" for each in mine), ""]
    return "\n".join(lines)


def render(modules: Sequence[Module]) -> dict[str, str]:
    """The text of every page, by file name."""
    homes: dict[int, tuple[str, Entry]] = {}
    for module in sorted(modules, key=lambda each: "experimental" in each.name):  # what moved out of there is described where it is now
        for entry in module.entries:
            if entry.documented:
                homes.setdefault(id(entry.value), (module.page, entry))
    pages = {module.name: module.page for module in modules}
    by_page: dict[str, list[Module]] = {}
    for module in modules:
        by_page.setdefault(module.page, []).append(module)
    texts = {f"{page}.md": page_text(page, each, homes, pages) for page, each in by_page.items()}
    return {"index.md": index_text(modules), **texts}


def undocumented(modules: Sequence[Module]) -> list[str]:
    """Public modules, functions, classes and their public methods that say nothing."""
    silent = [module.name for module in modules if not module.doc]
    for module in modules:
        for entry in module.entries:
            if entry.documented and not own_doc(entry.value):
                silent.append(entry.path)
            if isinstance(entry.value, type):
                silent += [
                    f"{entry.path}.{name}" for name, member in members(entry.value) if "\n" not in member_line(entry.value, name, member)
                ]
    return silent


def stale(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The pages in `folder` that are missing, out of date or of no use."""
    there = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.md")}
    return sorted(name for name in there.keys() | texts.keys() if there.get(name) != texts.get(name))


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Make `folder` hold these pages and no others."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.md"):
        if file.name not in texts:
            file.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def main(options: Sequence[str]) -> str | None:
    """Write or check the pages; gives the complaint, if any."""
    if [option for option in options if option != "--check"]:
        return __doc__
    modules = [load(name, package) for name, package in module_names().items()]
    texts = render(modules)
    silent = undocumented(modules)
    if not options:
        write(FOLDER, texts)
        print(f"{len(texts)} pages in {FOLDER.relative_to(ROOT)}")
    elif late := stale(FOLDER, texts):
        return f"stale in {FOLDER.relative_to(ROOT)}: {', '.join(late)}; write them again: {COMMAND}"
    return f"public names without a docstring: {', '.join(silent)}" if silent else None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""State dicts of wrappers, with the names that parameters have in what is wrapped."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from torch import nn

State = MutableMapping[str, Any]


def replace_by_prefix_(state_dict: State, old_prefix: str, new_prefix: str) -> None:
    """Replace `old_prefix` by `new_prefix` in the names of a state dict, in place. Raises ValueError if the prefixes are the same."""
    if old_prefix == new_prefix:
        raise ValueError(f"old_prefix and new_prefix are both {old_prefix!r}")
    for name in [name for name in state_dict if name.startswith(old_prefix)]:
        state_dict[new_prefix + name.removeprefix(old_prefix)] = state_dict.pop(name)


def hide_inside(wrapper: nn.Module, attribute: str) -> None:
    """Leave the name of the submodule `attribute` out of the state dict of `wrapper`; names with and without it load."""

    def without(module: nn.Module, state: State, prefix: str, local_metadata: Any) -> None:
        inside = f"{prefix}{attribute}."
        replace_by_prefix_(state, inside, prefix)
        _rename_metadata(state, inside, lambda path: prefix + path.removeprefix(inside))

    def within(module: nn.Module, state: State, prefix: str, *_: Any) -> None:
        inside = f"{prefix}{attribute}."
        own_names = {prefix + name for name, _ in module.named_parameters(recurse=False)}
        for name in [name for name in state if name.startswith(prefix) and not name.startswith(inside) and name not in own_names]:
            state[inside + name.removeprefix(prefix)] = state.pop(name)
        _rename_metadata(state, prefix, lambda path: path if path.startswith(inside) else inside + path.removeprefix(prefix))

    wrapper.register_state_dict_post_hook(without)
    wrapper.register_load_state_dict_pre_hook(within)


def _rename_metadata(state: State, prefix: str, renamed: Callable[[str], str]) -> None:
    """Rename the paths of module versions in the metadata, which have no dot at the end."""
    metadata = getattr(state, "_metadata", {})
    versions = {path: metadata.pop(path) for path in list(metadata) if f"{path}.".startswith(prefix)}
    metadata.update({renamed(f"{path}." if path else "").rstrip("."): version for path, version in versions.items()})

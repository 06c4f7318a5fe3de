"""Several parameters in one flat one, of which they are views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from xla_distributed.fsdp.delegating import Delegating
from xla_distributed.fsdp.names import State as StateDict
from xla_distributed.fsdp.names import hide_inside
from xla_distributed.fsdp.places import hide, show

_INSIDE = "_fpw_module"


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Which parameters a flat one holds, in line: number of elements, shape, and the path of the module and the name there.

    shared_param_infos: further places of parameters: (path of the module, name, path and name of the first place).
    """

    param_numels: list[int]
    param_shapes: list[tuple[int, ...]]
    param_infos: list[tuple[str, str]]
    shared_param_infos: list[tuple[str, str, str]]

    @property
    def names(self) -> list[str]:
        """The path of each parameter."""
        return [f"{path}.{name}" if path else name for path, name in self.param_infos]

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parameters as views of a flat tensor, which may be padded at the end."""
        parts = flat.narrow(0, 0, sum(self.param_numels)).split(self.param_numels)
        return [part.view(shape) for part, shape in zip(parts, self.param_shapes, strict=True)]


class FlatParameter(nn.Parameter):
    """A parameter of one dimension that holds others of one dtype. `contents` says which, once a wrapper knows their names."""

    contents: FlatLayout

    def __new__(cls, params: Sequence[nn.Parameter], requires_grad: bool = True) -> FlatParameter:
        """Raises ValueError without parameters or for several dtypes."""
        if not params:
            raise ValueError("FlatParameter takes one parameter or more, got none")
        dtypes = {parameter.dtype for parameter in params}
        if len(dtypes) > 1:
            raise ValueError(f"FlatParameter takes parameters of one dtype, got {sorted(map(str, dtypes))}: flatten each dtype by itself")
        data = torch.cat([parameter.detach().reshape(-1) for parameter in params])
        flat: FlatParameter = super().__new__(cls, data, requires_grad)
        return flat

    def __init__(self, params: Sequence[nn.Parameter], requires_grad: bool = True) -> None:
        shapes = [tuple(parameter.shape) for parameter in params]
        unnamed = [("", str(index)) for index in range(len(params))]
        self.contents = FlatLayout([parameter.numel() for parameter in params], shapes, unnamed, [])

    def get_param_views(self, external_data: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
        """The parameters as views of this one, or of `external_data` in its place."""
        return iter(self.contents.views(self if external_data is None else external_data))

    def metadata(self) -> tuple[list[str], list[tuple[int, ...]], list[int]]:
        """Paths, shapes and numbers of elements of the parameters."""
        return self.contents.names, self.contents.param_shapes, self.contents.param_numels


class XlaFlattenParamsWrapper(Delegating):
    """`module`, whose parameters become views of flat ones, which are the wrapper's parameters.

    param_list: parameters to flatten into one, or a list of such lists; None: all into one. flat_param_names: one for each list, else
    `flat_param_0` and so on. auto_unflatten_state_dict: let the state dict have the parameters by their names instead of the flat ones.
    Raises ValueError for parameters that are not the module's and for names of another number.
    """

    _inside = _INSIDE

    def __init__(
        self,
        module: nn.Module,
        param_list: Sequence[Any] | None = None,
        flat_param_names: Sequence[str] | None = None,
        auto_unflatten_state_dict: bool = True,
    ) -> None:
        super().__init__()
        lists = _lists(module, param_list)
        names = [f"flat_param_{index}" for index in range(len(lists))] if flat_param_names is None else list(flat_param_names)
        if len(names) != len(lists):
            raise ValueError(f"flat_param_names has {len(names)} names for {len(lists)} lists of parameters")
        self._fpw_module = module
        self.flat_param_names = names
        self._flat_state = not auto_unflatten_state_dict
        flats = [self._flatten(params) for params in lists]
        self.layouts = [flat.contents for flat in flats]
        for name, flat in zip(names, flats, strict=True):
            self.register_parameter(name, flat)
        self.show_views()
        hide_inside(self, _INSIDE)
        self.register_state_dict_post_hook(_unflatten_state)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_flatten_state)  # type: ignore[no-untyped-call]

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._fpw_module

    @property
    def flat_params(self) -> list[torch.Tensor]:
        """The flat parameters, or the whole tensors shown in their place."""
        return [getattr(self, name) for name in self.flat_param_names]

    def _flatten(self, params: Sequence[nn.Parameter]) -> FlatParameter:
        """Move the parameters out of their modules into one flat parameter."""
        flat = FlatParameter(params, params[0].requires_grad)
        firsts: dict[nn.Parameter, tuple[str, str]] = {}
        shared: list[tuple[str, str, str]] = []
        to_flatten = set(params)
        for path, owner in self._fpw_module.named_modules(remove_duplicate=False):
            for name, parameter in list(owner._parameters.items()):
                if parameter is None or parameter not in to_flatten:
                    continue
                if parameter in firsts:
                    shared.append((path, name, ".".join(filter(None, firsts[parameter]))))
                else:
                    firsts[parameter] = path, name
        for path, name in [*firsts.values(), *((path, name) for path, name, _ in shared)]:
            self._fpw_module.get_submodule(path)._parameters.pop(name, None)  # a module that stands in several places has it once
        layout = flat.contents
        infos = [firsts[parameter] for parameter in params]
        flat.contents = FlatLayout(layout.param_numels, layout.param_shapes, infos, shared)
        return flat

    def _places(self, layout: FlatLayout, data: torch.Tensor) -> list[tuple[nn.Module, str, torch.Tensor]]:
        """Module, name and view of each parameter of a flat tensor."""
        views = dict(zip(layout.names, layout.views(data), strict=True))
        firsts = [(path, name, views[first]) for (path, name), first in zip(layout.param_infos, views, strict=True)]
        others = [(path, name, views[first]) for path, name, first in layout.shared_param_infos]
        return [(self._fpw_module.get_submodule(path), name, view) for path, name, view in firsts + others]

    def show_views(self) -> None:
        """Give the modules views of the flat parameters as they are now."""
        for layout, flat in zip(self.layouts, self.flat_params, strict=True):
            for owner, name, view in self._places(layout, flat):
                show(owner, name, view)

    def hide_views(self) -> None:
        """Take the views away: they would keep the values that the flat parameters had."""
        for layout in self.layouts:
            for path, name in [*layout.param_infos, *((path, name) for path, name, _ in layout.shared_param_infos)]:
                hide(self._fpw_module.get_submodule(path), name)

    @contextmanager
    def unflatten_params(self) -> Iterator[None]:
        """Inside, the modules have parameters of their own; what they hold at the end, the flat ones take."""
        flats: dict[str, Any] = {name: self._parameters.pop(name) for name in self.flat_param_names}
        registered = []
        parameters: dict[torch.Tensor, nn.Parameter] = {}
        for layout, flat in zip(self.layouts, flats.values(), strict=True):
            for owner, name, view in self._places(layout, flat.detach()):
                hide(owner, name)
                if view not in parameters:
                    parameters[view] = nn.Parameter(view.clone(), flat.requires_grad)
                owner.register_parameter(name, parameters[view])
                registered.append((owner, name, view))
        try:
            yield
        finally:
            with torch.no_grad():
                for owner, name, view in registered:
                    view.copy_(getattr(owner, name))
                    del owner._parameters[name]
            self._parameters.update(flats)
            self.show_views()

    def flat_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The state dict with the flat parameters, whatever `auto_unflatten_state_dict` says."""
        before, self._flat_state = self._flat_state, True
        try:
            return dict(self.state_dict(*args, **kwargs))
        finally:
            self._flat_state = before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module with views of the flat parameters."""
        self.show_views()
        return self._fpw_module(*args, **kwargs)


def _unflatten_state(wrapper: XlaFlattenParamsWrapper, state: StateDict, prefix: str, local_metadata: Any) -> None:
    if wrapper._flat_state:
        return
    for flat_name, layout in zip(wrapper.flat_param_names, wrapper.layouts, strict=True):
        if prefix + flat_name not in state:
            continue
        views = dict(zip(layout.names, layout.views(state.pop(prefix + flat_name)), strict=True))
        state.update({prefix + name: view for name, view in views.items()})
        for path, name, first in layout.shared_param_infos:
            state[prefix + (f"{path}.{name}" if path else name)] = views[first]


def _flatten_state(wrapper: XlaFlattenParamsWrapper, state: StateDict, prefix: str, *_: Any) -> None:
    """Join the entries of each flat parameter, whose names have the inner prefix; incomplete ones stay, to be reported as missing."""
    inside = f"{prefix}{_INSIDE}."
    for flat_name, layout in zip(wrapper.flat_param_names, wrapper.layouts, strict=True):
        names = [inside + name for name in layout.names]
        if prefix + flat_name in state or not all(name in state for name in names):
            continue
        state[prefix + flat_name] = torch.cat([state.pop(name).reshape(-1) for name in names])
        for path, name, _first in layout.shared_param_infos:
            state.pop(inside + (f"{path}.{name}" if path else name), None)


def _lists(module: nn.Module, items: Sequence[Any] | None) -> list[list[nn.Parameter]]:
    if items is None:
        items = [list(module.parameters())]
    lists: list[list[nn.Parameter]] = [list(items)] if items and isinstance(items[0], torch.Tensor) else [list(params) for params in items]
    remaining = set(module.parameters())
    for params in lists:
        if not params:
            raise ValueError("param_list has an empty list: leave it out")
        for parameter in params:
            if parameter not in remaining:
                raise ValueError(f"param_list has a parameter of shape {tuple(parameter.shape)} that is none of the module's, or twice")
            remaining.remove(parameter)
    return lists

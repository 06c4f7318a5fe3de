"""Hardware from other packages: PJRT plugins, registered by a call or found by entry point, and chosen by `PJRT_DEVICE`.

The plugins of jax (`jax_plugins.*`) need none of this: `PJRT_DEVICE` names them.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from xla_core.api.job import topology
from xla_core.base import config, private_jax
from xla_core.base.errors import ExecutionError, RegistrationError, UnknownDeviceError
from xla_core.engine.runtime import client, placing

GROUP = "torch_xla.plugins"


class PjRtPlugin:
    """A PJRT plugin: a shared library for one kind of hardware, and the options of its client."""

    def library_path(self) -> str:
        """The path of the shared library."""
        raise NotImplementedError(f"{type(self).__name__} does not say where its library is: define library_path")

    def client_create_options(self) -> dict[str, Any]:
        """Options of its client by name: texts, numbers, booleans or lists of integers."""
        return {}

    def requires_xla_coordinator(self) -> bool:
        """Whether the processes of a job must be connected before devices start. xla-distributed always connects them."""
        return False


class DevicePlugin(PjRtPlugin):
    """Base class for authors of plugins: subclass it, and name the class in the entry point group `torch_xla.plugins`."""

    def host_index(self) -> int:
        """The number of this host."""
        raise NotImplementedError(f"{type(self).__name__} does not know its host: define host_index")

    def configure_single_process(self) -> None:
        """Prepare the environment of a process that uses all devices; called before they start."""

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Prepare the environment of one of several processes on this host; called before its devices start."""

    def physical_chip_count(self) -> int:
        """The number of devices of this host."""
        raise NotImplementedError(f"{type(self).__name__} does not count its devices: define physical_chip_count")


_plugins: dict[str, PjRtPlugin] = {}
_with_jax: set[str] = set()


def register_pjrt_plugin(name: str, plugin: PjRtPlugin) -> None:
    """Let `PJRT_DEVICE=name` choose a plugin; names are compared in upper case. The last plugin with a name counts.

    Raises ValueError for an object that is no plugin, RuntimeError once devices of that kind run.
    """
    if not isinstance(plugin, PjRtPlugin):
        raise RegistrationError(f"{name} is to be an instance of a subclass of DevicePlugin, got {plugin!r}")
    kind = name.upper()
    if kind in _with_jax or (client.started() and client.device_kind() == kind):
        raise ExecutionError(f"devices of kind {kind} run already: register their plugin before first use")
    _plugins[kind] = plugin


def register_plugin(name: str, device_plugin: DevicePlugin) -> None:
    """As `_XLAC._register_pjrt_plugin`, for a `DevicePlugin`."""
    register_pjrt_plugin(name, device_plugin)


def register_installed_plugins() -> None:
    """Register the plugins of installed distributions: entry points of group `torch_xla.plugins`, with the hardware's name."""
    _register(entry_points(group=GROUP))


def _register(entries: Iterable[EntryPoint]) -> None:
    for entry in sorted(entries, key=lambda entry: entry.name):
        register_pjrt_plugin(entry.name, entry.load()())


def _look_for(kind: str | None) -> None:
    """Register the installed plugin of a hardware kind, unless jax knows the kind or a call has registered a plugin for it."""
    if kind is not None and kind not in placing.FAMILIES and kind not in _plugins:
        _register(entry for entry in entry_points(group=GROUP) if entry.name.upper() == kind)


def use_dynamic_plugins() -> None:
    """Register all installed plugins when devices start: `PJRT_DYNAMIC_PLUGINS=1`. The plugin of `PJRT_DEVICE` is found without this."""
    config.PJRT_DYNAMIC_PLUGINS.set(True)


def using_dynamic_plugins() -> bool:
    """Whether all installed plugins are registered when devices start."""
    return config.PJRT_DYNAMIC_PLUGINS.get()


def default() -> PjRtPlugin:
    """The plugin that `PJRT_DEVICE` chooses. Raises RuntimeError if it chooses none."""
    kind = client.device_kind()
    _look_for(kind)
    if kind not in _plugins:
        names = ", ".join(sorted(_plugins)) or "none is registered"
        raise UnknownDeviceError(f"PJRT_DEVICE chooses {kind}, for which there is no plugin: {names}")
    return _plugins[kind]


def _start() -> None:
    """Register the plugin that `PJRT_DEVICE` chooses with jax."""
    if using_dynamic_plugins():
        register_installed_plugins()
    kind = client.device_kind()
    _look_for(kind)
    plugin = _plugins.get(kind or "")
    if kind is None or plugin is None:
        return
    if isinstance(plugin, DevicePlugin):
        here = topology()
        if here.local_count > 1:
            plugin.configure_multiprocess(here.local_rank, here.local_count)
        else:
            plugin.configure_single_process()
    if kind in placing.FAMILIES or kind in _with_jax:
        return
    try:
        private_jax.register_jax_plugin(kind.lower(), plugin.library_path(), plugin.client_create_options())
    except (RuntimeError, OSError, ValueError) as error:
        raise ExecutionError(f"the plugin of PJRT_DEVICE={kind} cannot be loaded from {plugin.library_path()}: {error}") from error
    _with_jax.add(kind)


def register() -> None:
    """Look for the plugin that `PJRT_DEVICE` chooses before devices start."""
    client.before_start(_start)

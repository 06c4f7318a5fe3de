"""Plugins of hardware: registered by a call or by an entry point of group `torch_xla.plugins`."""

from xla_core.api.device_plugins import DevicePlugin as DevicePlugin
from xla_core.api.device_plugins import default as default
from xla_core.api.device_plugins import register_installed_plugins as register_installed_plugins
from xla_core.api.device_plugins import register_plugin as register_plugin
from xla_core.api.device_plugins import use_dynamic_plugins as use_dynamic_plugins
from xla_core.api.device_plugins import using_dynamic_plugins as using_dynamic_plugins

__all__ = [name for name in dir() if not name.startswith("__")]

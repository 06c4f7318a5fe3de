"""Plugins of hardware: registered by a call or by an entry point of group `torch_xla.plugins`."""

from __future__ import annotations

from xla_core.api.device_plugins import (
    DevicePlugin,
    default,
    register_installed_plugins,
    register_plugin,
    use_dynamic_plugins,
    using_dynamic_plugins,
)

__all__ = ["DevicePlugin", "default", "register_installed_plugins", "register_plugin", "use_dynamic_plugins", "using_dynamic_plugins"]

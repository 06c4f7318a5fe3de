"""Makes torch know the backend `xla` and the init methods `xla://` and `pjrt://`, as importing torch_xla does already."""

from __future__ import annotations

from xla_core.api.backend import register

__all__: list[str] = []

register()

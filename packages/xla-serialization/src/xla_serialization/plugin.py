"""What this package brings to the core: the writer behind `xm.save`."""

from __future__ import annotations

from xla_core.abi.plugins import CheckpointWriter, Plugin


def _checkpoints() -> CheckpointWriter:
    from xla_serialization.torch_formats import xm_save

    return xm_save


PLUGIN = Plugin(checkpoints=_checkpoints)

"""TPUs as a plugin: what libtpu needs, for programs that ask for it or bring their own library. JAX starts TPUs without it."""

from __future__ import annotations

import importlib
from pathlib import Path

from torch_xla.experimental.plugins import DevicePlugin
from xla_distributed import settings
from xla_distributed.job.tpu import host as tpu
from xla_distributed.job.tpu import topology as tpu_topology


class TpuPlugin(DevicePlugin):
    """The plugin of TPUs."""

    def library_path(self) -> str:
        """The path of libtpu: TPU_LIBRARY_PATH, else that of the package `libtpu`. Raises OSError if there is neither."""
        chosen = settings.TPU_LIBRARY_PATH.get()
        if chosen:
            if not Path(chosen).is_file():
                raise FileNotFoundError(f"TPU_LIBRARY_PATH is {chosen}, which is no file")
            return chosen
        try:
            return str(importlib.import_module("libtpu").get_library_path())
        except ImportError as error:
            raise OSError("libtpu is not installed: pip install 'xla-core[tpu]', or set TPU_LIBRARY_PATH to the library") from error

    def host_index(self) -> int:
        """The number of this host in its slice."""
        return tpu.worker_id()

    def configure_single_process(self) -> None:
        """Give this process, which is on its own, one chip."""
        tpu_topology.configure_one_chip_topology()

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Give this process one chip of its host, as one of several."""
        tpu_topology.configure_topology(local_rank, local_world_size)

    def physical_chip_count(self) -> int:
        """The number of TPU chips of this host."""
        return tpu.num_available_chips()

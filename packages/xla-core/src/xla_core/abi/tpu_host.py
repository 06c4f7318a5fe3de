"""A TPU host: its chips, and how the processes on it share them.

    >>> from xla_core.abi.tpu_host import chip_count, configure_process
    >>> chip_count()  # no TPU here
    0
    >>> configure_process(0, 1)  # one process has all chips of its host: nothing is to be set

* `chip_count` is the number of chips that this process may use, from the PCI bus and `TPU_VISIBLE_CHIPS`.
* `configure_process` gives this process one chip, as one of equally many processes on each host of the slice. It sets what libtpu reads
  when devices start; variables that are set already stay.

Guarantees: no client is started. The metadata server of Google Cloud is asked only by `configure_process`, for what the environment does
not say, and only where TPU_SKIP_MDS_QUERY is not set; JAX sets it where there is no TPU.
"""

from __future__ import annotations

from xla_core.api.tpu.host import num_visible_chips as chip_count
from xla_core.api.tpu.topology import configure_topology as configure_process

__all__ = ["chip_count", "configure_process"]

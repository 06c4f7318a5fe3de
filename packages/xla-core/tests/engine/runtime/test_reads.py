"""Reading a buffer leaves no other array with it, which would keep what was copied to the host."""

from __future__ import annotations

import gc

import jax
import numpy as np

from xla_core.engine.runtime.client import client
from xla_core.engine.runtime.transfer import fetched


def test_a_buffer_keeps_nothing_of_a_read() -> None:
    buffer = jax.device_put(np.arange(40_000, dtype=np.float32), client().devices[0])
    gc.collect()
    before = len(jax.live_arrays())
    found, ours = fetched(buffer)
    assert np.array_equal(found, np.arange(40_000, dtype=np.float32)) and not ours
    del found
    gc.collect()
    assert len(jax.live_arrays()) == before

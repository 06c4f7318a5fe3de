"""Tensors that a function makes of host data at each call, such as weights of classes: equal data is one constant of its programs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.pending_graph import Recorder, buffer_value
from xla_core.engine.tensor.storage import Storage

MOST_BYTES = 1 << 16
"""A larger tensor is data, not a constant."""


class Upload:
    """A buffer that was made of host data, with its contents. The program may take over the buffer: `copy` stays."""

    def __init__(self, buffer: jax.Array) -> None:
        self.buffer, self.copy = buffer, buffer.copy()
        self.key: tuple[Any, ...] = (str(buffer.dtype), buffer.shape, np.asarray(buffer).tobytes())


class Constants:
    """The constants of one function, found by their contents."""

    def __init__(self) -> None:
        self._storages: dict[tuple[Any, ...], Storage] = {}

    def storage(self, upload: Upload, number: int, recorder: Recorder, aval: Aval) -> Storage:
        """The storage of a constant. number: counts constants with equal contents in a call, for inputs of a program are different "
        "tensors."""
        key = (recorder, number, *upload.key)
        storage = self._storages.get(key)
        if storage is None:
            storage = self._storages[key] = Storage()
            storage.value = buffer_value(recorder, aval, upload.copy)
        return storage

"""Random states that a backward graph uses again: dropout inside an activation checkpoint.

Torch saves a random state in the forward graph and hands it to the backward graph. Here the state is a tensor on the device: a result of
the forward program and an input of the backward program.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from xla_core.engine.graph.aval import aval_of
from xla_core.engine.graph.entries import SEED
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.graph.signature import Signature
from xla_core.engine.runtime.client import recorder_of
from xla_core.engine.tensor.plain import ours, tensor_behind
from xla_core.engine.tensor.tensor import wrap
from xla_core.features.dynamo.program_graph import ProgramGraph
from xla_core.ops.random.random import key_of

_STATE = aval_of((2,), torch.uint32)  # low and high half of a seed, as random operations take it
_SAVE = Signature("xla.random_state", key_of, (), {}, (_STATE,), random=True)


def _recorder(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorder:
    first = next((tensor for tensor in map(tensor_behind, args) if tensor is not None), None)
    return recorder_of(kwargs["device"]) if first is None else first._storage.value.recorder


def save(op: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """Call `op`. Returns the random state that it draws from, and its results."""
    recorder = _recorder(args, kwargs)
    with recorder.lock:
        graph = recorder.pending_graph
        if isinstance(graph, ProgramGraph):
            slot = graph.append(_SAVE, [graph.add_scalar(SEED, recorder.draw())])
            state = wrap(graph.define(recorder, slot, _STATE))
            return state, graph.repeat(state, lambda: op(*args, **kwargs))
        halves = np.array([recorder.seed], np.uint64).view(np.uint32)
        return torch.from_numpy(halves).to(recorder.device), op(*args, **kwargs)


def repeat(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `op` with a random state of `save`. Outside of a program, this reads the state."""
    recorder = ours(state)._storage.value.recorder
    with recorder.lock:
        graph = recorder.pending_graph
        if isinstance(graph, ProgramGraph):
            return graph.repeat(ours(state), lambda: op(*args, **kwargs))
        before, recorder.seed = recorder.seed, int(state.cpu().numpy().view(np.uint64)[0])
        try:
            return op(*args, **kwargs)
        finally:
            recorder.seed = before

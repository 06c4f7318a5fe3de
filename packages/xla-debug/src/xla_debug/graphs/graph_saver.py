"""Save the pending program of tensors, without running it."""

from __future__ import annotations

import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from xla_debug import settings
from xla_debug.core import budget, graph, job, texts
from xla_debug.graphs import drawing, graph_text
from xla_debug.settings import GraphFormat


def _text(tensors: Sequence[torch.Tensor]) -> str:
    return texts.graph_text(graph.graph_of([getattr(tensor, "global_tensor", tensor) for tensor in tensors]))  # of an XLAShardedTensor


def _dot(tensors: Sequence[torch.Tensor]) -> str:
    return drawing.dot(graph_text.parse(_text(tensors)))


# By format: the suffix of the file, and the function that makes its text.
_WRITERS: dict[GraphFormat, tuple[str, Callable[[Sequence[torch.Tensor]], str]]] = {
    GraphFormat.TEXT: (".txt", _text),
    GraphFormat.DOT: (".dot", _dot),
    GraphFormat.HLO: (".hlo", texts.hlo_text),
}
_lock = threading.Lock()
_counts: defaultdict[Path, Iterator[int]] = defaultdict(itertools.count)


@budget()
def save_tensors_graph(save_dir: str | os.PathLike[str], name: str, tensors: Sequence[torch.Tensor]) -> Path:
    """Write the pending program of `tensors` to `<save_dir>/<name>-<k>.txt` and return that path; k counts from 0 for each name.

    SAVE_GRAPH_FMT chooses Graphviz's dot (`.dot`) or HLO (`.hlo`). With several replicas the ordinal is appended. Runs no program.
    Raises ValueError for no tensors, one that is not on xla, a name that is no file name, or an unknown format; OSError.
    """
    if not tensors:
        raise ValueError("save_tensors_graph needs at least one tensor, whose program it saves")
    if not name or Path(name).name != name:
        raise ValueError(f"the name of a graph becomes a file name, {name!r} cannot: leave out folders")
    for tensor in tensors:
        if tensor.device.type != "xla":
            raise ValueError(f"a tensor on {tensor.device} has no pending program: only those on xla have")
    suffix, text_of = _WRITERS[settings.SAVE_GRAPH_FMT.get()]
    text = text_of(tensors)
    folder = Path(save_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with _lock:
        index = next(_counts[folder.absolute() / name])
    replica_suffix = f".{job.ordinal()}" if job.world_size() > 1 else ""
    path = folder / f"{name}-{index}{suffix}{replica_suffix}"
    path.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
    return path

"""Replicas that save one state together: divide the writing among them, and check that they have equal data."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from xla_serialization.checkpoint.chunks import Chunks
from xla_serialization.checkpoint.participants import Participants, spans_processes
from xla_serialization.checkpoint.state import FlatState
from xla_serialization.errors import ReplicasDifferError, UnsavableError
from xla_serialization.format.limits import shown
from xla_serialization.format.manifest import Tree
from xla_serialization.format.matching import first_difference

_log = logging.getLogger("torch_xla")
_SHOWN = 3
_REMEDY = (
    "If each is to keep its own, save xla_serialization.PerProcess(value) in its place; if all should have the same, give it to all, "
    "as xm.broadcast_master_param(model) does"
)
Digests = Mapping[str, str]
"""Checksums by the keys of chunks."""


def divide(state: FlatState, chunks: Chunks, participants: Participants) -> tuple[Chunks, Chunks]:
    """Give the chunks that this process writes, and its copies of chunks that another process writes. All processes must call.

    Raises ReplicasDifferError, in all processes, if they have tensors of other names, shapes or dtypes.
    """
    if participants.count == 1 or spans_processes():
        return chunks, {}
    shared = {name: _text(state, name) for name in state.tensors if name not in state.own_tensors}
    gathered = participants.all_gather([shared, sorted(state.own_tensors), list(chunks)])
    _check_names([names for names, _, _ in gathered], [own for _, own, _ in gathered])
    # The first process that has a chunk writes it.
    elsewhere = {name for _, _, blocks in gathered[: participants.index] for name in blocks}
    written = {name: chunk for name, chunk in chunks.items() if name not in elsewhere}
    return written, {name: chunk for name, chunk in chunks.items() if name in elsewhere}


def _text(state: FlatState, name: str) -> str:
    tensor = state.tensors[name]
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _check_names(shared: Sequence[dict[str, str]], own: Sequence[list[str]]) -> None:
    for process, names in enumerate(shared):
        different = [name for name in {**shared[0], **names} if shared[0].get(name) != names.get(name)]
        if different:
            name = different[0]
            sides = ", ".join(f"process {index} has {shared[index].get(name, 'none')}" for index in (0, process))
            raise ReplicasDifferError(
                f"nothing was saved: replicas save one state together, and of {shown(name)}{_more(different)} {sides}. {_REMEDY}"
            )
    taken: set[str] = set(shared[0])
    for own_names in own:
        duplicates = sorted(taken & set(own_names))
        if duplicates:
            raise UnsavableError(f"{duplicates[0]}: two tensors have this name, one of them in a PerProcess: give it another key")
        taken.update(own_names)


def check_equal(written: Sequence[Digests], compared: Sequence[Digests]) -> None:
    """Raise ReplicasDifferError, which names tensors and processes, unless the copies of all processes equal what was written.

    written, compared: checksums of the chunks that each process wrote, and of its copies.
    """
    writers = {block: (process, digest) for process, digests in enumerate(written) for block, digest in digests.items()}
    different: dict[str, set[int]] = {}
    for process, digests in enumerate(compared):
        for block, digest in digests.items():
            if digest != writers[block][1]:
                different.setdefault(block, {writers[block][0]}).add(process)
    if different:
        block, processes = next(iter(different.items()))
        writer = writers[block][0]
        others = ", ".join(str(process) for process in sorted(processes - {writer}))
        names = list(dict.fromkeys(chunk_key.rpartition("@")[0] for chunk_key in different))
        raise ReplicasDifferError(
            f"nothing was saved: replicas save one state together, and {shown(names[0])}{_more(names)} of process {writer} differs "
            f"from that of process {others}. {_REMEDY}"
        )


def _more(names: Sequence[str]) -> str:
    rest = [shown(name) for name in names[1:_SHOWN]]
    return f" (and {len(names) - 1} more: {', '.join(rest)}{', …' if len(names) > _SHOWN else ''})" if rest else ""


def warn_of_values(tree: Tree, digests: Sequence[str], participants: Participants) -> None:
    """Warn where plain values of processes differ: the first process's are saved. digests: of their trees. All processes must call."""
    if len(set(digests)) == 1 or spans_processes():
        return
    trees: list[Any] = participants.all_gather(tree)
    process = next(index for index, digest in enumerate(digests) if digest != digests[0])
    if not participants.index:
        _log.warning(
            "replicas save one state together: process 0's plain values are saved, and process %s has others, first at %s; "
            "xla_serialization.PerProcess(value) keeps each one's own",
            process,
            first_difference(trees[0], trees[process]),
        )

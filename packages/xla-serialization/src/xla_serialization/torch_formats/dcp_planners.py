"""Planners of `torch.distributed.checkpoint`: each process saves and loads the shards of `xla` tensors that its devices hold.

All other values are saved and loaded as by torch's default planners.
"""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from xla_serialization.checkpoint.local_shards import Spans, local_spans, write_local_shards
from xla_serialization.checkpoint.state import unwrapped
from xla_serialization.core import sharding
from xla_serialization.errors import UnsavableError


class SPMDSavePlanner(DefaultSavePlanner):
    """For `torch.distributed.checkpoint.save(state_dict, …, planner=SPMDSavePlanner())`."""

    def create_local_plan(self) -> SavePlan:
        """Plan what this process saves: the shards of `xla` tensors that it owns, and what the default planner saves of the rest."""
        whole_state = self.state_dict
        tensors = {name: tensor for name, value in whole_state.items() if (tensor := _on_device(value)) is not None}
        self.state_dict = {name: value for name, value in whole_state.items() if name not in tensors}
        try:
            plan = super().create_local_plan()
        finally:
            self.state_dict = whole_state
        self._reads: dict[MetadataIndex, _Read] = {}
        owned = [item for name, tensor in tensors.items() for item in self._owned(name, tensor)]
        self.plan = dataclasses.replace(plan, items=[*plan.items, *owned])
        return self.plan

    def _owned(self, name: str, tensor: torch.Tensor) -> list[WriteItem]:
        items = []
        for shard in sharding.owned_shards(tensor):
            offsets = torch.Size([span.start for span in shard.index])
            chunk = ChunkStorageMetadata(offsets, torch.Size([span.stop - span.start for span in shard.index]))
            properties = TensorProperties(tensor.dtype, requires_grad=tensor.requires_grad)
            index = MetadataIndex(name, offsets)
            items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, properties, tensor.size())))
            self._reads[index] = shard.read
        return items

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Finish this process's plan: for torch's HuggingFaceStorageWriter, whose files hold one block per tensor, join the shards.

        Raises UnsavableError for shards that form no block, and for parts of tensors where the writer expects whole ones.
        """
        plan = super().finish_plan(new_plan)
        if isinstance(plan.storage_data, dict):  # only that writer passes a dict
            joined = [self._join(name, items) for name, items in _by_name(plan.items).items()]
            for item in joined:
                _check_whole(item, plan.storage_data)
            plan = self.plan = dataclasses.replace(plan, items=joined)
        return plan

    def _join(self, name: str, items: list[WriteItem]) -> WriteItem:
        if len(items) == 1:
            return items[0]
        chunks = [item.tensor_data.chunk for item in items if item.tensor_data is not None]
        dims = range(len(chunks[0].sizes))
        start = torch.Size([min(chunk.offsets[dim] for chunk in chunks) for dim in dims])
        size = torch.Size([max(chunk.offsets[dim] + chunk.sizes[dim] for chunk in chunks) - start[dim] for dim in dims])
        if size.numel() != sum(chunk.sizes.numel() for chunk in chunks):
            raise UnsavableError(
                f"{name}: the shards of this process make no block, and files of HuggingFaceStorageWriter hold one block of a tensor each: "
                "save with xla_serialization.save, whose folders HuggingFaceStorageReader reads, or with FileSystemWriter"
            )
        reads = [(chunk, self._reads[item.index]) for chunk, item in zip(chunks, items, strict=True)]
        index = MetadataIndex(name, start)
        first: Any = items[0].tensor_data
        self._reads[index] = functools.partial(_assembled, first.properties.dtype, start, size, reads)
        data = dataclasses.replace(first, chunk=ChunkStorageMetadata(start, size))
        return dataclasses.replace(items[0], index=index, tensor_data=data)

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Read the data of an item: for a shard a CPU tensor, copied from its device now."""
        read = self._reads.get(write_item.index)
        return super().resolve_data(write_item) if read is None else read()


_Read = Callable[[], torch.Tensor]


def _by_name(items: Sequence[WriteItem]) -> dict[str, list[WriteItem]]:
    by_name: dict[str, list[WriteItem]] = {}
    for item in items:
        by_name.setdefault(item.index.fqn, []).append(item)
    return by_name


def _check_whole(item: WriteItem, storage_data: Mapping[str, Any]) -> None:
    data = item.tensor_data
    if data is not None and data.chunk.sizes != data.size and "shard_index" not in storage_data:
        raise UnsavableError(
            f"{item.index.fqn}: this process has {list(data.chunk.sizes)} of {list(data.size)}, and the writer is to write whole tensors: "
            "make it HuggingFaceStorageWriter(path, save_distributed=True)"
        )


def _assembled(
    dtype: torch.dtype, start: torch.Size, size: torch.Size, reads: Sequence[tuple[ChunkStorageMetadata, _Read]]
) -> torch.Tensor:
    """Assemble a block of a tensor from its shards."""
    block = torch.empty(size, dtype=dtype, device="cpu")
    for chunk, read in reads:
        spans = zip(chunk.offsets, chunk.sizes, start, strict=True)
        block[tuple(slice(offset - first, offset - first + length) for offset, length, first in spans)] = read()
    return block


class SPMDLoadPlanner(DefaultLoadPlanner):
    """For `torch.distributed.checkpoint.load(state_dict, …, planner=SPMDLoadPlanner())`: the mesh may be another than when saving.

    A tensor on `xla` is written once all that this process needs of it has been read; until then the data is on the host.
    """

    def create_local_plan(self) -> LoadPlan:
        """Plan what this process reads: the shards of `xla` tensors on its devices, and what the default planner reads of the rest."""
        plan = super().create_local_plan()
        saved: Any = self.metadata and self.metadata.state_dict_metadata
        self._loading = {
            name: _Loading(name, tensor, saved[name])
            for name in dict.fromkeys(item.dest_index.fqn for item in plan.items)
            if (tensor := _on_device(self.state_dict[name])) is not None and isinstance(saved[name], TensorStorageMetadata)
        }
        items = [item for item in plan.items if item.dest_index.fqn not in self._loading]
        return dataclasses.replace(plan, items=[*items, *(item for loading in self._loading.values() for item in loading.items)])

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Give the tensor into which the data of an item is to be read."""
        loading = self._loading.get(read_item.dest_index.fqn)
        if loading is None:
            target: torch.Tensor = super().resolve_tensor(read_item)
            return target
        return loading.target(read_item)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Note that an item's data has been read; the last item of a tensor on `xla` writes the tensor."""
        loading = self._loading.get(read_item.dest_index.fqn)
        if loading is None:
            super().commit_tensor(read_item, tensor)
        else:
            loading.commit()


class _Loading:
    """A tensor on `xla` that is being loaded, with the host memory for its shards."""

    def __init__(self, name: str, tensor: torch.Tensor, saved: TensorStorageMetadata) -> None:
        self._tensor = tensor
        self._spans = list(dict.fromkeys(local_spans(tensor)))
        self._shards: dict[Spans, torch.Tensor] = {}
        chunks = [ChunkStorageMetadata(_offsets(spans), _sizes(spans)) for spans in self._spans]
        self.items = create_read_items_for_chunk_list(name, saved, chunks)
        self._missing = len(self.items)

    def target(self, item: ReadItem) -> torch.Tensor:
        """Give the part of a shard's host memory into which the data of an item is to be read."""
        if not self._shards:
            self._shards = {spans: torch.empty(_sizes(spans), dtype=self._tensor.dtype, device="cpu") for spans in self._spans}
        (shard,) = (shard for spans, shard in self._shards.items() if _offsets(spans) == item.dest_index.offset)
        return shard[tuple(slice(start, start + size) for start, size in zip(item.dest_offsets, item.lengths, strict=True))]

    def commit(self) -> None:
        """Count an item as read; after the last one write the tensor."""
        self._missing -= 1
        if not self._missing:
            write_local_shards(self._tensor, self._shards)
            self._shards.clear()


def _offsets(spans: Spans) -> torch.Size:
    return torch.Size([start for start, _ in spans])


def _sizes(spans: Spans) -> torch.Size:
    return torch.Size([stop - start for start, stop in spans])


def _on_device(value: Any) -> torch.Tensor | None:
    """The tensor on `xla` that a value is, or wraps; None for any other value."""
    return unwrapped(value) if isinstance(value, torch.Tensor) and value.device.type == "xla" else None

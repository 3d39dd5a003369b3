"""The tensors of a checkpoint, in however many files, read into those of this process."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from fidgpt.train.checkpoints.pieces import OFFSETS, SHARDING


class Kind(NamedTuple):
    """Number format and whole shape of a stored tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class Stored:
    """Tensors of safetensors files, whole or in pieces, as one table by name.

    Args:
        files: each holds pieces; one that says nothing of them holds whole tensors.

    Attributes:
        kinds: what there is.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._places: dict[tuple[str, tuple[int, ...]], Path] = {}
        self._table: dict[str, TensorStorageMetadata] = {}
        for file in files:
            self._list(file)
        self.kinds = {
            name: Kind(entry.properties.dtype, tuple(entry.size))
            for name, entry in self._table.items()
        }

    def read_into(self, targets: Mapping[str, Tensor]) -> None:
        """Fills tensors of this process, sharded ones with their own part, bit for bit."""
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        inert = {name: tensor.detach() for name, tensor in targets.items()}
        planner.set_up_planner(inert, Metadata(dict(self._table)))
        by_file: dict[Path, list[ReadItem]] = {}
        for item in planner.create_local_plan().items:
            by_file.setdefault(self._place(item.storage_index), []).append(item)
        for file, items in by_file.items():
            with safe_open(file, "pt") as opened:
                for item in items:
                    planner.resolve_tensor(item).copy_(_read(opened, item))

    def read(self) -> dict[str, Tensor]:
        """All tensors, whole, on the CPU."""
        tensors = {
            name: torch.empty(kind.shape, dtype=kind.dtype) for name, kind in self.kinds.items()
        }
        self.read_into(tensors)
        return tensors

    def _list(self, file: Path) -> None:
        with safe_open(file, "pt") as opened:
            offsets = json.loads((opened.metadata() or {}).get(SHARDING, "{}"))
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                piece = opened.get_slice(name)
                shape = piece.get_shape()
                dtype = piece[:0].dtype if shape else opened.get_tensor(name).dtype
                begin = offsets[name][OFFSETS] if name in offsets else [0] * len(shape)
                self._add(name, dtype, begin, shape)
                self._places[name, tuple(begin)] = file

    def _add(self, name: str, dtype: torch.dtype, begin: list[int], shape: list[int]) -> None:
        end = [first + count for first, count in zip(begin, shape, strict=True)]
        chunk = ChunkStorageMetadata(torch.Size(begin), torch.Size(shape))
        entry = self._table.setdefault(
            name, TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(end), [])
        )
        entry.chunks.append(chunk)
        entry.size = torch.Size(map(max, entry.size, end))

    def _place(self, index: MetadataIndex) -> Path:
        return self._places[index.fqn, tuple(index.offset or ())]


def _read(opened: safe_open, item: ReadItem) -> Tensor:
    name = item.storage_index.fqn
    piece = opened.get_slice(name)
    if list(item.lengths) == piece.get_shape():
        return opened.get_tensor(name)
    return piece[
        tuple(
            slice(begin, begin + count)
            for begin, count in zip(item.storage_offsets, item.lengths, strict=True)
        )
    ]

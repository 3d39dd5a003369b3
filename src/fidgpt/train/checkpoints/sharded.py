"""Tensors that several processes hold, saved and loaded."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem, SavePlan

from fidgpt.train.checkpoints.peers import Peers

# The words of torch's own HuggingFaceStorageReader, which so reads what is written here.
SHARDING, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"


class Piece(NamedTuple):
    """A block of a tensor that lies on this process.

    Attributes:
        tensor: the block, in memory of the run.
        offsets: where it begins in each dimension of the whole tensor.
    """

    tensor: Tensor
    offsets: list[int]


Files = dict[str, dict[str, Piece]]


def share_out(sections: Mapping[str, Mapping[str, Tensor]], peers: Peers) -> Files:
    """The files that this process writes: the pieces in each, by the tensor's name.

    A section that one process holds becomes `model.safetensors`; one that is sharded over several,
    a file for each, `model-00001-of-00004.safetensors`. What several hold alike is written once.
    """
    flat = {
        f"{section}/{name}": tensor.detach()
        for section, tensors in sections.items()
        for name, tensor in tensors.items()
    }
    planner = DefaultSavePlanner(
        flatten_state_dict=False, flatten_sharded_tensors=False, dedup_save_to_lowest_rank=True
    )
    planner.set_up_planner(flat, is_coordinator=peers.is_main)
    # Every process computes the whole plan, which is small, and takes its part of it.
    plans, _ = planner.create_global_plan(peers.all(planner.create_local_plan()))
    names = _names(sections, plans, peers.rank)
    files: Files = {file: {} for file in names.values()}
    for item in plans[peers.rank].items:
        section, _, name = item.index.fqn.partition("/")
        offsets = list(item.tensor_data.chunk.offsets) if item.tensor_data else []
        files[names[section]][name] = Piece(_resolved(planner, item), offsets)
    return files


def write_pieces(path: Path, pieces: Mapping[str, Piece]) -> None:
    """One safetensors file; tensors that overlap in memory are stored one by one."""
    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, piece in pieces.items():
        packed = piece.tensor.detach().cpu().contiguous()
        storage = packed.untyped_storage().data_ptr()
        plain[name] = packed.clone() if storage in storages else packed
        storages.add(storage)
    path.touch()
    mode = path.stat().st_mode
    safetensors.torch.save_file(
        plain, path, metadata=_sharding(pieces) if "-of-" in path.name else None
    )
    path.chmod(mode)  # save_file makes a file that only its owner may read, whatever the umask


def _names(sections: Mapping[str, object], plans: list[SavePlan], rank: int) -> dict[str, str]:
    """The file of each section that this process writes something of."""
    names = {}
    for section in sections:
        holders = [
            number
            for number, plan in enumerate(plans)
            if any(item.index.fqn.startswith(f"{section}/") for item in plan.items)
        ] or [0]  # a section may be empty, as the state of plain SGD is
        if rank in holders:
            place = f"-{holders.index(rank) + 1:05d}-of-{len(holders):05d}"
            names[section] = f"{section}{place if len(holders) > 1 else ''}.safetensors"
    return names


def _resolved(planner: DefaultSavePlanner, item: Any) -> Tensor:
    tensor = planner.resolve_data(item)
    assert isinstance(tensor, Tensor)  # sections hold nothing else
    return tensor


def _sharding(pieces: Mapping[str, Piece]) -> dict[str, str]:
    offsets = {name: {OFFSETS: piece.offsets} for name, piece in pieces.items()}
    return {"format": "pt", SHARDING: json.dumps(offsets)}


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

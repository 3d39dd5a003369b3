"""Tensors that are sharded over processes, saved and loaded."""

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
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem, SavePlan

from fidgpt.train.checkpoints.writing import Peers

# Keys of torch's HuggingFaceStorageReader, which can read these files.
SHARDING, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"


class Piece(NamedTuple):
    """A block of a tensor on this process.

    Attributes:
        tensor: the block, in memory of the run.
        offsets: its start in each dimension of the whole tensor.
    """

    tensor: Tensor
    offsets: list[int]


Files = dict[str, dict[str, Piece]]


def share_out(sections: Mapping[str, Mapping[str, Tensor]], peers: Peers) -> Files:
    """Return the pieces of each file that this process writes, by the tensor's name.

    A section on one process becomes `model.safetensors`; one that is sharded over several, a file
    for each, `model-00001-of-00004.safetensors`. Replicated tensors are written once.
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
    """Write a safetensors file; tensors that overlap in memory are stored separately."""
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
    path.chmod(mode)  # save_file ignores the umask


def _names(sections: Mapping[str, object], plans: list[SavePlan], rank: int) -> dict[str, str]:
    """Return the file of each section that this process writes a part of."""
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
        files: hold pieces, or whole tensors if they have no offsets.

    Attributes:
        kinds: of the whole tensors, by name.
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
        """Fill tensors of this process, sharded ones with their own part, bit for bit."""
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        inert = {name: tensor.detach() for name, tensor in targets.items()}
        planner.set_up_planner(inert, Metadata(dict(self._table)))
        by_file: dict[Path, list[ReadItem]] = {}
        for item in planner.create_local_plan().items:
            place = item.storage_index.fqn, tuple(item.storage_index.offset or ())
            by_file.setdefault(self._places[place], []).append(item)
        for file, items in by_file.items():
            with safe_open(file, "pt") as opened:
                for item in items:
                    planner.resolve_tensor(item).copy_(_read(opened, item))

    def _list(self, file: Path) -> None:
        with safe_open(file, "pt") as opened:
            offsets = json.loads((opened.metadata() or {}).get(SHARDING, "{}"))
            for name in opened.keys():  # noqa: SIM118 - it is not a mapping
                piece = opened.get_slice(name)
                shape = piece.get_shape()
                dtype = piece[:0].dtype if shape else opened.get_tensor(name).dtype
                begin = offsets[name][OFFSETS] if name in offsets else [0] * len(shape)
                end = torch.Size(map(sum, zip(begin, shape, strict=True)))
                entry = self._table.setdefault(
                    name, TensorStorageMetadata(TensorProperties(dtype=dtype), end, [])
                )
                entry.chunks.append(ChunkStorageMetadata(torch.Size(begin), torch.Size(shape)))
                entry.size = torch.Size(map(max, entry.size, end))
                self._places[name, tuple(begin)] = file


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

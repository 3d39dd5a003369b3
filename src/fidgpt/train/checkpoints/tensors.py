"""State of components as JSON and named tensors, and the files of tensors, sharded or whole."""

import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from fidgpt.files import parse_json
from fidgpt.placement import Block, block_of, held, is_divided, is_sharded, placed_like, whole_shape
from fidgpt.processes import Processes
from fidgpt.processes.heartbeat import advance
from fidgpt.train.checkpoints import manifest
from fidgpt.train.checkpoints.manifest import CheckpointError
from fidgpt.train.checkpoints.writing import SyncWriter


def flatten(value: object, *, root: str) -> tuple[Any, dict[str, Tensor]]:
    """Return a JSON value and the tensors it names; `unflatten` is the inverse.

    Supports None, bool, int, float, str, list, tuple, dict with such keys, and Tensor.
    A tensor in two places is stored once and restored as one. `root` is the prefix of the names of
    tensors, and of the place in the error.

    Raises:
        CheckpointError: it holds something else; the message names the place and the type.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def encode(item: object, place: str) -> Any:
        match item:
            case None | bool() | int() | str():
                return item
            case float():
                return float(item) if math.isfinite(item) else {"$float": repr(float(item))}
            case torch.dtype():
                return {"$dtype": str(item).removeprefix("torch.")}
            case Tensor() if _is_made_of_others(item):
                parts, context = item.__tensor_flatten__()  # pyright: ignore
                kept = {part: getattr(item, part) for part in parts}
                kind, layout = type(item), (tuple(item.shape), tuple(item.stride()))
                content = encode([kept, context, *layout], place)
                return {"$made_of": [kind.__module__, kind.__qualname__, *content]}
            case Tensor():
                name = names.setdefault(id(item), place)
                tensors[name] = item
                return {"$tensor": name} | _strides(item)
            case list():
                return [encode(part, f"{place}.{i}") for i, part in enumerate(item)]
            case tuple():
                return {"$tuple": [encode(part, f"{place}.{i}") for i, part in enumerate(item)]}
            case Mapping():
                pairs = [(key, encode(part, f"{place}.{key}")) for key, part in item.items()]
                if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
                    return dict(pairs)
                return {"$items": [[encode(key, place), part] for key, part in pairs]}
        raise CheckpointError(
            f"{place} is a {type(item).__name__}, which a checkpoint cannot hold: "
            "keep numbers, strings, None, lists, tuples, dicts or tensors there."
        )

    return encode(value, root), tensors


def unflatten(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that was flattened; tensors that were not contiguous get their strides."""
    made: dict[str, Tensor] = {}

    def decode(item: Any) -> Any:
        match item:
            case list():
                return [decode(part) for part in item]
            case {"$float": text}:
                return float(text)
            case {"$tuple": parts}:
                return tuple(decode(part) for part in parts)
            case {"$items": pairs}:
                return {decode(key): decode(part) for key, part in pairs}
            case {"$dtype": name}:
                return getattr(torch, name)
            case {"$made_of": [module, name, *content]}:  # by the optimizer, which is imported
                return vars(sys.modules[module])[name].__tensor_unflatten__(*map(decode, content))
            case {"$tensor": name}:
                if name not in made:
                    made[name] = _laid_out(tensors[name], item.get("stride"))
                return made[name]
            case dict():
                return {key: decode(part) for key, part in item.items()}
        return item

    return decode(value)


def _is_made_of_others(tensor: Tensor) -> bool:
    """Return whether a tensor holds others, such as eight bits and their scales, and no data."""
    return hasattr(tensor, "__tensor_flatten__") and not is_divided(tensor)


def _strides(tensor: Tensor) -> dict[str, list[int]]:
    # Fused optimizers walk a parameter and its state side by side in memory, so the state of a
    # transposed parameter must come back transposed. A stride of 0 (expanded) is not worth keeping.
    if is_divided(tensor) or tensor.is_contiguous() or 0 in tensor.stride():
        return {}
    return {"stride": list(tensor.stride())}


def _laid_out(tensor: Tensor, stride: list[int] | None) -> Tensor:
    if stride is None or is_divided(tensor):
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)


_LISTED = 12


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name; a tied one once, under its first name.

    Raises:
        CheckpointError: a module keeps extra state.
    """
    tensors: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"{name} is not a tensor: give the module a buffer instead.")
        tensors.setdefault(id(tensor), (name, tensor))
    return dict(tensors.values())


def mismatches(saved: Mapping[str, Any], model: Mapping[str, Tensor]) -> list[str]:
    """Return a line for each tensor whose name, shape or dtype differs.

    Args:
        saved: dtypes and shapes in a file, by name.
        model: its tensors, by name.
    """
    lines = [
        f"{name}: {_kind(saved.get(name))} in the checkpoint, {_kind(model.get(name))} in the model"
        for name in sorted(saved.keys() | model.keys())
        if _kind(saved.get(name)) != _kind(model.get(name))
    ]
    rest = len(lines) - _LISTED
    return [*lines[:_LISTED], f"and {rest} more"] if rest > 0 else lines


def _kind(tensor: Any) -> str:
    if tensor is None:
        return "absent"
    shape = tensor.shape if isinstance(tensor, Kind) else whole_shape(tensor)
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(shape)}"


def optimizer_parts(optimizer: Optimizer, model: nn.Module) -> tuple[Any, dict[str, Tensor]]:
    """Return the state of an optimizer as JSON and tensors, with the names of its parameters."""
    state, tensors = flatten(optimizer.state_dict(), root=type(optimizer).__name__)
    for name, tensor in tensors.items():
        like = parameter_of(name, optimizer)
        if like is not None and tensor.shape == like.shape:
            placed_like(tensor, like)
    return _identity(optimizer, model) | {"state_dict": state}, tensors


def check_optimizer(saved: Any, optimizer: Optimizer, model: nn.Module) -> None:
    """Raise CheckpointError if the class or the grouped parameters are not those saved."""
    own = _identity(optimizer, model)
    if saved["class"] != own["class"]:
        raise CheckpointError(
            f"the checkpoint was saved by {saved['class']}, and this run uses {own['class']}."
        )
    for i, (before, now) in enumerate(itertools.zip_longest(saved["groups"], own["groups"])):
        if before != now:
            gone, new = {*(before or ())} - {*(now or ())}, {*(now or ())} - {*(before or ())}
            raise CheckpointError(
                f"group {i} of the optimizer has other parameters, or another order: gone "
                f"{sorted(gone)[:_LISTED]}, new {sorted(new)[:_LISTED]}."
            )


def parameter_of(name: str, optimizer: Optimizer) -> Tensor | None:
    """Return the parameter to which a tensor of `optimizer_parts` belongs, by its name."""
    _, section, *place = name.split(".")
    if section != "state" or not place or not place[0].isdigit():
        return None
    return [p for group in optimizer.param_groups for p in group["params"]][int(place[0])]


def empty(kind: Any, *, like: Tensor | None) -> Tensor:
    """Allocate a tensor, divided like another one of its shape, else whole on every process."""
    if like is None or not is_divided(like) or not kind.shape:
        return torch.empty(kind.shape, dtype=kind.dtype)
    if whole_shape(like) == tuple(kind.shape):
        return placed_like(torch.empty_like(like, dtype=kind.dtype).detach(), like)
    if not is_sharded(like):
        return torch.empty(kind.shape, dtype=kind.dtype)
    from torch.distributed.tensor import Replicate, empty  # late: one process needs none of it

    mesh = like.device_mesh  # pyright: ignore[reportAttributeAccessIssue]
    return empty(
        *kind.shape, dtype=kind.dtype, device_mesh=mesh, placements=[Replicate()] * mesh.ndim
    )


def load_optimizer(saved: Any, tensors: Mapping[str, Tensor], optimizer: Optimizer) -> None:
    """Restore the state bit for bit."""
    state_dict = unflatten(saved["state_dict"], tensors)
    optimizer.load_state_dict(state_dict)
    _undo_casts(optimizer, state_dict)


def _identity(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [
        [names.get(id(parameter), "(not in the model)") for parameter in group["params"]]
        for group in optimizer.param_groups
    ]
    return {"class": type(optimizer).__name__, "groups": groups}


def _undo_casts(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    # torch's load_state_dict casts every state tensor except `step` to its parameter's dtype (a
    # bfloat16 moment, an integer counter) and takes strings apart as sequences. The inner dicts
    # that state_dict() returns are the live ones, so the saved values can be put back.
    live = optimizer.state_dict().get("state", {})
    for index, entry in saved.get("state", {}).items():
        if isinstance(entry, dict):
            live[index].update(
                {key: _uncast(value, live[index][key]) for key, value in entry.items()}
            )


def _uncast(saved: Any, live: Any) -> Any:
    if isinstance(saved, Tensor):
        return live if live.dtype == saved.dtype else saved.to(live.device)
    if isinstance(saved, (list, tuple)):
        return type(saved)(_uncast(*pair) for pair in zip(saved, live, strict=True))
    if isinstance(saved, dict):
        return {key: _uncast(value, live[key]) for key, value in saved.items()}
    return saved


# Keys of torch's HuggingFaceStorageReader, which can read these files.
SHARDING, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"


Files = dict[str, dict[str, Block]]  # pieces of tensors by file and name
Key = tuple[str, str, tuple[int, ...]]  # of a piece: section, name, and where it begins


def share_out(sections: Mapping[str, Mapping[str, Tensor]], peers: Processes) -> Files:
    """Return the pieces of each file that this process writes, by the tensor's name.

    A section on one process becomes `model.safetensors`; one that is divided over several, a file
    for each, `model-00001-of-00004.safetensors`. What several processes hold is written once, by
    the first of them.
    """
    own: dict[Key, Block] = {}
    for section, tensors in sections.items():
        for name, tensor in tensors.items():
            if (block := block_of(tensor)) is not None:
                own[section, name, block.begin] = block._replace(tensor=block.tensor.detach())
    writers: dict[Key, int] = {}
    for rank, keys in enumerate(peers.gather([*own])):
        for key in keys:
            writers.setdefault(key, rank)
    names = _names(sections, writers, peers.rank)
    files: Files = {file: {} for file in names.values()}
    for (section, name, begin), piece in own.items():
        if writers[section, name, begin] == peers.rank:
            files[names[section]][name] = piece
    return files


def kept(files: Files, writer: SyncWriter) -> Files:
    """Return pieces of files that training may change no more once this returns."""
    return {
        file: {
            name: piece._replace(tensor=writer.keep(f"{file}/{name}", piece.tensor))
            for name, piece in pieces.items()
        }
        for file, pieces in files.items()
    }


def write_files(folder: Path, pieces: Files, texts: Mapping[str, Any]) -> manifest.Seals:
    """Write files of tensors, and of JSON, by name; return their sizes and checksums."""
    for name, content in pieces.items():
        write_pieces(folder / name, content)
    for name, value in texts.items():
        (folder / name).write_bytes(manifest.json_bytes(value))
    return manifest.seal(folder, [*pieces, *texts])


def write_pieces(path: Path, pieces: Mapping[str, Block]) -> None:
    """Write a safetensors file; tensors that overlap in memory are stored separately."""
    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, piece in pieces.items():
        packed = piece.tensor.detach().cpu().contiguous()
        storage = packed.untyped_storage().data_ptr()
        plain[name] = packed.clone() if storage in storages else packed
        storages.add(storage)
    offsets = {name: {OFFSETS: [*piece.begin]} for name, piece in pieces.items()}
    # One entry only: safetensors writes several in random order.
    metadata = {SHARDING: json.dumps(offsets, sort_keys=True)} if "-of-" in path.name else None
    path.touch()
    mode = path.stat().st_mode
    safetensors.torch.save_file(plain, path, metadata=metadata)
    path.chmod(mode)  # save_file ignores the umask
    advance()


def _names(sections: Mapping[str, object], writers: Mapping[Key, int], rank: int) -> dict[str, str]:
    """Return the file of each section that this process writes a part of."""
    names = {}
    for section in sections:
        # A section may be empty, as the state of plain SGD is.
        holders = sorted({writer for key, writer in writers.items() if key[0] == section}) or [0]
        if rank in holders:
            place = f"-{holders.index(rank) + 1:05d}-of-{len(holders):05d}"
            names[section] = f"{section}{place if len(holders) > 1 else ''}.safetensors"
    return names


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
        self.kinds: dict[str, Kind] = {}
        self._pieces: dict[str, dict[tuple[int, ...], tuple[list[int], Path]]] = {}
        for file in files:
            with safe_open(file, "pt") as opened:
                offsets = parse_json((opened.metadata() or {}).get(SHARDING, "{}"))
                for name in opened.keys():  # noqa: SIM118 - it is not a mapping
                    piece = opened.get_slice(name)
                    shape = piece.get_shape()
                    dtype = piece[:0].dtype if shape else opened.get_tensor(name).dtype
                    begin = offsets[name][OFFSETS] if name in offsets else [0] * len(shape)
                    end = tuple(map(sum, zip(begin, shape, strict=True)))
                    known = self.kinds.get(name, Kind(dtype, end))
                    self.kinds[name] = Kind(dtype, tuple(map(max, known.shape, end)))
                    self._pieces.setdefault(name, {})[tuple(begin)] = shape, file

    @torch.no_grad()
    def read_into(self, targets: Mapping[str, Tensor]) -> None:
        """Fill tensors of this process, divided ones with their own part, bit for bit."""
        by_file: dict[Path, list[tuple[str, Block, tuple[int, ...]]]] = {}
        for name, target in targets.items():
            block = block_of(target)
            if block is None:  # another process has it
                held(target).zero_()
                continue
            for begin, (shape, file) in self._pieces[name].items():
                if all(low < high for low, high in _overlap(block, begin, shape)):
                    by_file.setdefault(file, []).append((name, block, begin))
        for file, items in by_file.items():
            with safe_open(file, "pt") as opened:
                for name, block, begin in items:
                    shape, _ = self._pieces[name][begin]
                    _copy(opened, name, block, begin, shape)


def _overlap(block: Block, begin: Sequence[int], shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return the bounds of what a block and a stored piece share, in each dimension."""
    sides = zip(block.begin, block.tensor.shape, begin, shape, strict=True)
    return [(max(own, low), min(own + n, low + size)) for own, n, low, size in sides]


def _copy(
    opened: safe_open, name: str, block: Block, begin: Sequence[int], shape: Sequence[int]
) -> None:
    """Copy what a block and a stored piece share."""
    bounds = _overlap(block, begin, shape)
    there = [slice(a - low, b - low) for (a, b), low in zip(bounds, begin, strict=True)]
    here = [slice(a - own, b - own) for (a, b), own in zip(bounds, block.begin, strict=True)]
    is_whole = [b - a for a, b in bounds] == [*shape]
    values = opened.get_tensor(name) if is_whole else opened.get_slice(name)[tuple(there)]
    block.tensor[tuple(here)].copy_(values)

"""Nested values as strict JSON beside a flat table of tensors, and back, without losing a bit."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fidgpt.parallel.sharding import is_sharded
from fidgpt.train.checkpoints.files import CheckpointError


def flatten(value: object, *, root: str) -> tuple[Any, dict[str, Tensor]]:
    """A JSON value and the tensors it names; `unflatten` is the inverse.

    Holds None, bool, int, float (inf and nan too), str, list, tuple, dict with such keys, Tensor.
    One tensor in two places is stored once and comes back as one tensor. `root` opens the names of
    the tensors and of the place in the error.

    Raises:
        CheckpointError: something else is in it; the message names the place and the type.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def encode(item: object, place: str) -> Any:
        match item:
            case None | bool() | int() | str():
                return item
            case float():
                return float(item) if math.isfinite(item) else {"$float": repr(float(item))}
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
    """The value that `flatten` took apart, of the tensors that are handed over with it.

    One that did not lie in memory row by row is copied, so that it lies as it did.
    """
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
            case {"$tensor": name}:
                if name not in made:
                    made[name] = _laid_out(tensors[name], item.get("stride"))
                return made[name]
            case dict():
                return {key: decode(part) for key, part in item.items()}
        return item

    return decode(value)


def _strides(tensor: Tensor) -> dict[str, list[int]]:
    # Fused optimizers walk a parameter and its state side by side in memory, so the state of a
    # transposed parameter must come back transposed. A stride of 0 (expanded) is not worth keeping.
    if is_sharded(tensor) or tensor.is_contiguous() or 0 in tensor.stride():
        return {}
    return {"stride": list(tensor.stride())}


def _laid_out(tensor: Tensor, stride: list[int] | None) -> Tensor:
    if stride is None or is_sharded(tensor):
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype).copy_(tensor)

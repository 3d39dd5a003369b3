"""A model's weights in files of a limited size, and the index that names them."""

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fidgpt.interop.hugging_face.files import INDEX, WEIGHTS, write_json, write_whole
from fidgpt.interop.hugging_face.tensors import Layout

_OF_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


@torch.no_grad()
def write_weights(layout: Layout, directory: Path, *, max_shard_size: int) -> None:
    """Writes the shards, then what names them; what nothing names any more goes.

    Args:
      layout: of a model with memory; it is copied shard by shard.
      directory: is there.
      max_shard_size: bytes of a file, unless a single tensor is larger.
    """
    shards = list(_shards(layout, max_shard_size))
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    names = [WEIGHTS] if len(shards) == 1 else names
    for name, inside in zip(names, shards, strict=True):
        _write_shard(layout, inside, directory / name)
    if len(shards) > 1:
        places = {one: name for name, inside in zip(names, shards, strict=True) for one in inside}
        _write_index(layout, places, directory / INDEX)
        names.append(INDEX)
    for path in directory.iterdir():
        if path.name not in names and _OF_WEIGHTS.fullmatch(path.name):
            path.unlink()


def _shards(layout: Layout, max_shard_size: int) -> Iterator[list[str]]:
    """The names of the tensors, in their order, in groups of so many bytes at most."""
    shard: list[str] = []
    size = 0
    for name in layout.pieces:
        size += _size(layout, name)
        if shard and size > max_shard_size:
            yield shard
            shard, size = [], _size(layout, name)
        shard.append(name)
    yield shard


def _write_shard(layout: Layout, names: list[str], path: Path) -> None:
    tensors = {name: _filled(layout, name) for name in names}
    write_whole(path, lambda draft: save_file(tensors, draft, {"format": "pt"}))


def _write_index(layout: Layout, places: dict[str, str], path: Path) -> None:
    size = sum(_size(layout, name) for name in places)
    write_json(path, {"metadata": {"total_size": size}, "weight_map": places})


def _size(layout: Layout, name: str) -> int:
    shape = torch.Size(layout.shape(name))
    return shape.numel() * layout.pieces[name][0].ours.element_size()


def _filled(layout: Layout, name: str) -> Tensor:
    """A tensor of the files, on the CPU."""
    pieces = layout.pieces[name]
    tensor = torch.empty(layout.shape(name), dtype=pieces[0].ours.dtype, device="cpu")
    for piece in pieces:
        piece.theirs(tensor).copy_(piece.ours)
    return tensor

"""A Hugging Face directory: its config.json, and the tensors of its safetensors files."""

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fidgpt.files import atomic_path
from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.tensors import Layout, coded_weights

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_OTHERS = ("*.safetensors", "pytorch_model*.bin", "*.pth", "*.gguf")


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
      ConfigError: there is no such file, or it holds something else.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} cannot be read: it holds no JSON object.")
    return content


def is_hub_directory(directory: Path) -> bool:
    """Whether there is a config.json that names a model of the hub; a run has one of its own."""
    try:
        return isinstance(read_json(directory / CONFIG).get("model_type"), str)
    except ConfigError:
        return False


def has_weights(directory: Path) -> bool:
    """Whether there is a file of tensors, or an index of several.

    Raises:
      ConfigError: there is neither, but shards that nothing names, or files of another kind: a
        model that starts at random is not what was meant.
    """
    if any((directory / name).exists() for name in (WEIGHTS, INDEX)):
        return True
    if any(path for pattern in _OTHERS for path in directory.glob(pattern)):
        raise _nameless(directory)
    return False


class TensorFiles:
    """The tensors of model.safetensors, or of the shards of its index, each read when it is asked.

    Weights in eight or four bits that have scales are given as what they stand for, in float32.

    Attributes:
      shapes: of every tensor in the files, by name.
      formats: of their numbers, as safetensors calls them, such as BF16.

    Raises:
      ConfigError: there is no such file, one is damaged, or the index names a tensor that is in
        none of them.
    """

    def __init__(self, directory: Path) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.formats: dict[str, str] = {}
        self._places: dict[str, Path] = {}
        named = _index(directory)
        for path in sorted({directory / name for name in named.values()} or {directory / WEIGHTS}):
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118 (it is no mapping)
                    tensor = file.get_slice(name)
                    self.shapes[name] = tuple(tensor.get_shape())
                    self.formats[name] = tensor.get_dtype()
                    self._places[name] = path
        if lost := sorted(named.keys() - self.shapes.keys()):
            raise ConfigError(
                f"{directory / INDEX} names {len(lost)} tensors that are in none of its files, "
                f"such as {lost[0]}: download the files again."
            )
        self._coded = coded_weights(self.formats, self.shapes)
        for name, weight in self._coded.items():
            for part in (weight.codes, weight.scales):
                del self.formats[part], self.shapes[part]
            self.formats[name], self.shapes[name] = "F32", weight.shape
            self._places[name] = self._places[weight.codes]

    def __getitem__(self, name: str) -> Tensor:
        with _opened(self._places[name]) as file:
            return self._read(file, name)

    def each(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Some of the tensors, one in memory at a time, file by file."""
        wanted: dict[Path, list[str]] = {}
        for name in names:
            wanted.setdefault(self._places[name], []).append(name)
        for path, inside in wanted.items():
            with _opened(path) as file:
                for name in inside:
                    yield name, self._read(file, name)

    def _read(self, file: Any, name: str) -> Tensor:
        weight = self._coded.get(name)
        if weight is None:
            return file.get_tensor(name)
        return weight.decode(file.get_tensor(weight.codes), self[weight.scales])


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Lets `write` make a file that is whole under its name, or is not there."""
    with atomic_path(path) as draft:
        draft.touch()
        mode = draft.stat().st_mode
        write(draft)
        draft.chmod(mode)  # safetensors makes files that only their owner may read


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file, whole or not at all."""
    text = json.dumps(content, indent=1) + "\n"
    write_whole(path, lambda draft: draft.write_text(text, encoding="utf-8"))


def _index(directory: Path) -> dict[str, str]:
    """The file of each tensor by its name; nothing where one file holds all."""
    if (directory / WEIGHTS).exists():
        return {}
    if not (directory / INDEX).exists():
        raise _nameless(directory)
    shards = read_json(directory / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ConfigError(f"{directory / INDEX} cannot be read: it holds no weight_map of files.")
    return shards


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if path.is_dir():
        raise ConfigError(f"{path} cannot be read: {os.strerror(errno.EISDIR)}.")
    try:
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise ConfigError(
            f"{path} cannot be read: {error}. It is damaged or not whole: download it again."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _nameless(directory: Path) -> ConfigError:
    return ConfigError(
        f"{directory} holds no {WEIGHTS} and no {INDEX}: download the model's safetensors files, "
        "or save it again with a transformers of today."
    )


def _unreadable(path: Path, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"{path} cannot be read: {reason}.")


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

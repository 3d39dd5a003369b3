"""A Hugging Face directory: its config.json, and the tensors of its safetensors files."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fidgpt.files import atomic_path, write_whole
from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.tensors import Layout, coded_weights

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_OTHERS = ("*.safetensors", "pytorch_model*.bin", "*.pth", "*.gguf")
_OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file.

    Raises:
      ConfigError: there is no such file, or it holds something else.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} cannot be read: it does not hold a JSON object.")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    write_whole(path, json.dumps(content, indent=1) + "\n")


def is_hub_directory(directory: Path) -> bool:
    """Whether there is a config.json that names a model of the hub; a run has one of its own."""
    try:
        return isinstance(read_json(directory / CONFIG).get("model_type"), str)
    except ConfigError:
        return False


def has_weights(directory: Path) -> bool:
    """Whether there is a file of tensors, or an index of several.

    Raises:
      ConfigError: there is neither, but shards without an index, or files of another kind: a
        model with random weights is not what was meant.
    """
    if any((directory / name).exists() for name in (WEIGHTS, INDEX)):
        return True
    if any(path for pattern in _OTHERS for path in directory.glob(pattern)):
        raise _no_weights(directory)
    return False


class TensorFiles:
    """The tensors of model.safetensors, or of the shards of its index, each read when needed.

    Weights in eight or four bits that have scales are decoded to float32.

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
        self._files: dict[str, Path] = {}
        index = _index(directory)
        for path in sorted({directory / name for name in index.values()} or {directory / WEIGHTS}):
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118 (it is not a mapping)
                    tensor = file.get_slice(name)
                    self.shapes[name] = tuple(tensor.get_shape())
                    self.formats[name] = tensor.get_dtype()
                    self._files[name] = path
        if lost := sorted(index.keys() - self.shapes.keys()):
            raise ConfigError(
                f"{directory / INDEX} names {len(lost)} tensors that are in none of its files, "
                f"such as {lost[0]}: download the files again."
            )
        self._coded = coded_weights(self.formats, self.shapes)
        for name, weight in self._coded.items():
            for part in (weight.codes, weight.scales):
                del self.formats[part], self.shapes[part]
            self.formats[name], self.shapes[name] = "F32", weight.shape
            self._files[name] = self._files[weight.codes]

    def __getitem__(self, name: str) -> Tensor:
        return next(tensor for _, tensor in self.each([name]))

    def each(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield some of the tensors, one in memory at a time, file by file."""
        wanted: dict[Path, list[str]] = {}
        for name in names:
            wanted.setdefault(self._files[name], []).append(name)
        for path, inside in wanted.items():
            with _opened(path) as file:
                for name in inside:
                    weight = self._coded.get(name)
                    if weight is None:
                        yield name, file.get_tensor(name)
                    else:
                        codes = file.get_tensor(weight.codes)
                        yield name, weight.decode(codes, self[weight.scales])


def _index(directory: Path) -> dict[str, str]:
    """Return the file of each tensor by its name; nothing if one file holds all."""
    if (directory / WEIGHTS).exists():
        return {}
    if not (directory / INDEX).exists():
        raise _no_weights(directory)
    shards = read_json(directory / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ConfigError(f"{directory / INDEX} cannot be read: it has no weight_map of files.")
    return shards


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb"):  # for the reason that safetensors does not give
            pass
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise ConfigError(
            f"{path} cannot be read: {error}. It is damaged or incomplete: download it again."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _no_weights(directory: Path) -> ConfigError:
    return ConfigError(
        f"{directory} holds neither {WEIGHTS} nor {INDEX}: download the model's safetensors files, "
        "or save it again with a current version of transformers."
    )


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")


@torch.no_grad()
def write_weights(layout: Layout, directory: Path, *, max_shard_size: int) -> None:
    """Write the shards, then their index; remove earlier weights.

    Args:
      layout: of a model with memory; it is copied shard by shard.
      directory: exists.
      max_shard_size: bytes of a file, unless a single tensor is larger.
    """
    shards: list[list[str]] = [[]]
    size = 0
    for name in layout.pieces:
        size += layout.size(name)
        if shards[-1] and size > max_shard_size:
            shards.append([])
            size = layout.size(name)
        shards[-1].append(name)
    count = len(shards)
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    names = [WEIGHTS] if count == 1 else names
    for name, inside in zip(names, shards, strict=True):
        with atomic_path(directory / name) as draft:
            draft.touch()
            mode = draft.stat().st_mode
            save_file({one: layout.tensor(one) for one in inside}, draft, {"format": "pt"})
            draft.chmod(mode)  # safetensors makes files that only their owner may read
    if count > 1:
        files = {one: name for name, inside in zip(names, shards, strict=True) for one in inside}
        total = {"total_size": sum(map(layout.size, files))}
        write_json(directory / INDEX, {"metadata": total, "weight_map": files})
        names.append(INDEX)
    for path in directory.iterdir():
        if path.name not in names and _OURS.fullmatch(path.name):
            path.unlink()

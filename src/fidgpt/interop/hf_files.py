"""A Hugging Face directory: its config.json, and the tensors of its safetensors files."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fidgpt.graph import ConfigError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
      ConfigError: there is no such file, or it holds something else.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} cannot be read: it holds no JSON object.")
    return content


class TensorFiles:
    """The tensors of model.safetensors, or of the shards of its index, each read when it is asked.

    Attributes:
      shapes: of every tensor in the files, by name.

    Raises:
      ConfigError: there is no such file, or one that is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.shapes: dict[str, list[int]] = {}
        self._places: dict[str, Path] = {}
        for path in _paths(directory):
            try:
                with safe_open(path, "pt") as file:
                    for name in file.keys():  # noqa: SIM118 (it is no mapping)
                        self.shapes[name] = file.get_slice(name).get_shape()
                        self._places[name] = path
            except (OSError, SafetensorError) as error:
                raise _unreadable(path, error) from error

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self._places[name], "pt") as file:
            return file.get_tensor(name)


def write_directory(
    directory: Path, *, settings: Mapping[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Writes config.json and model.safetensors; under their names they are whole or not there."""
    text = json.dumps(settings, indent=1) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / WEIGHTS, lambda path: save_file(tensors, path, {"format": "pt"}))
    _write(directory / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def _paths(directory: Path) -> list[Path]:
    if (directory / WEIGHTS).exists():
        return [directory / WEIGHTS]
    if not (directory / INDEX).exists():
        raise ConfigError(
            f"{directory} holds no {WEIGHTS} and no {INDEX}: download the model's safetensors "
            "files, or save it again with a transformers of today."
        )
    shards = read_json(directory / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ConfigError(f"{directory / INDEX} cannot be read: it holds no weight_map of files.")
    return [directory / name for name in sorted(set(shards.values()))]


def _unreadable(path: Path, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"{path} cannot be read: {reason}.")


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)  # save_file makes a file that only its owner may read
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

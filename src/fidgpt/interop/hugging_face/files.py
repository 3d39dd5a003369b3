"""Hugging Face directories: config.json and safetensors files."""

import fnmatch
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fidgpt.configs.hub import Family, Form, Piece, Same, Tensors
from fidgpt.files import (
    atomic_path,
    is_inside,
    list_own,
    parse_json,
    read_bytes,
    write_whole,
)
from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.quantized import coded_weights
from fidgpt.model import LoRALinear, StackedExperts, is_adapter

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_OTHERS = ("*.safetensors", "pytorch_model*.bin", "*.pth", "*.gguf")
_OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file.

    Raises:
      ConfigError: the file cannot be read, or is not a JSON object.
    """
    try:
        content: Any = parse_json(read_bytes(path))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} cannot be read: it is not a JSON object.")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_whole(path, json.dumps(content, indent=1) + "\n")


def is_hub_directory(directory: Path) -> bool:
    """Return whether a config.json describes a Hugging Face model rather than a run."""
    try:
        return isinstance(read_json(directory / CONFIG).get("model_type"), str)
    except ConfigError:
        return False


def has_weights(directory: Path) -> bool:
    """Return whether there is a safetensors file, or an index of several.

    Raises:
      ConfigError: there are only shards without an index, or weights in another format.
    """
    if any((directory / name).exists() for name in (WEIGHTS, INDEX)):
        return True
    if any(path for pattern in _OTHERS for path in directory.glob(pattern)):
        raise _no_weights(directory)
    return False


# The tensors that one joins by rows, by the names of families; of each expert at the braces.
_FUSED = {
    ".experts.gate_up_proj": (
        (".experts.{}.gate_proj.weight", ".experts.{}.up_proj.weight"),
        (".experts.{}.w1.weight", ".experts.{}.w3.weight"),
    ),
    ".experts.up_proj": ((".experts.{}.up_proj.weight",),),
    ".experts.down_proj": ((".experts.{}.down_proj.weight",), (".experts.{}.w2.weight",)),
    ".conv1d.weight": ((".q_conv1d.weight", ".k_conv1d.weight", ".v_conv1d.weight"),),
}


class TensorFiles:
    """The tensors of model.safetensors, or of the shards in its index, read on demand.

    Weights quantized to eight bits or fewer are dequantized to float32.

    Attributes:
      shapes: shape of each tensor by name.
      formats: dtype of each tensor by name, in safetensors' notation, such as BF16.

    Raises:
      ConfigError: a file is missing or damaged, or the index names a tensor that is in no file.
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
                f"such as {lost[0]}; download the files again."
            )
        self._parts: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self._coded = coded_weights(self.formats, self.shapes, _settings(directory))
        for name, weight in self._coded.items():
            for part in weight.parts:
                del self.formats[part], self.shapes[part]
            for other in weight.unread:
                self.shapes.pop(other, None)
            self.formats[name], self.shapes[name] = "F32", weight.shape
            self._files[name] = self._files[weight.parts[0]]

    def split_fused(self, is_known: Callable[[str], bool]) -> None:
        """Give a name to each part of a fused tensor, where files with single parts are known.

        transformers 5 computes with all experts of a layer in one tensor, and saves them so by
        `save_original_format=False`.
        """
        for fused in [name for name in self.shapes if not is_known(name)]:
            for kind in filter(fused.endswith, _FUSED):
                holder = fused.removesuffix(kind)
                for parts in _FUSED[kind]:
                    if is_known(holder + parts[0].format(0)):
                        self._split(fused, [holder + part for part in parts])
                        break

    def _split(self, fused: str, parts: Sequence[str]) -> None:
        """Replace a tensor by its parts, of each expert if they have its number."""
        shape, dtype = self.shapes.pop(fused), self.formats.pop(fused)
        experts = [(expert,) for expert in range(shape[0])] if "{}" in parts[0] else [()]
        rows, *columns = shape[len(experts[0]) :]
        rows //= len(parts)
        for expert, (index, part) in itertools.product(experts, enumerate(parts)):
            name = part.format(*expert)
            self._parts[name] = fused, (*expert, slice(index * rows, (index + 1) * rows))
            self.shapes[name], self.formats[name] = (rows, *columns), dtype
            self._files[name] = self._files[fused]

    def __getitem__(self, name: str) -> Tensor:
        return next(tensor for _, tensor in self.each([name]))

    def each(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the named tensors, one in memory at a time, file by file."""
        wanted: dict[Path, list[str]] = {}
        for name in names:
            wanted.setdefault(self._files[name], []).append(name)
        for path, inside in wanted.items():
            with _opened(path) as file:
                for name in inside:
                    weight = self._coded.get(name)
                    if name in self._parts:
                        fused, place = self._parts[name]
                        yield name, file.get_slice(fused)[place]
                    elif weight is None:
                        yield name, file.get_tensor(name)
                    else:
                        codes, *others = weight.parts
                        yield (
                            name,
                            weight.decode(file.get_tensor(codes), *map(self.__getitem__, others)),
                        )


def _settings(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG
    return read_json(path) if path.exists() else {}


def _index(directory: Path) -> dict[str, str]:
    """Return the file of each tensor by name; empty if there is a single file."""
    if (directory / WEIGHTS).exists():
        return {}
    if not (directory / INDEX).exists():
        raise _no_weights(directory)
    shards = read_json(directory / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not all(map(is_inside, shards.values())):
        raise ConfigError(f"{directory / INDEX} cannot be read: it has no weight_map of files.")
    return shards


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb"):  # for errors that safetensors does not report
            pass
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise ConfigError(
            f"{path} cannot be read: {error}. It is damaged or incomplete; download it again."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _no_weights(directory: Path) -> ConfigError:
    return ConfigError(
        f"{directory} has neither {WEIGHTS} nor {INDEX}; download the model's safetensors files, "
        "or save it again with a current version of transformers."
    )


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")


# Buffers in old files that config.json determines.
_IGNORED = ("*.rotary_emb.inv_freq",)
_IGNORED += ("mtp.*", "model.mtp_*")  # of the prediction of further tokens
# Of models that read images and sounds too.
_IGNORED += ("*vision_tower.*", "*vision_model.*", "*multi_modal_projector.*", "model.visual.*")
_IGNORED += ("vision_embed_tokens.*", "model.embed_tokens_extend.*")


@dataclass
class Layout:
    """The mapping between a model's parameters and buffers and the tensors of its files.

    Attributes:
      pieces: pieces of each tensor in the files, by name.
      paths: path of a parameter in each tensor, by the tensor's name.
      tied: alternative names of tied tensors, which may be saved twice, with their main name.
      ignored: patterns of names to ignore.
    """

    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = _IGNORED

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor in the files."""
        return self.pieces[name][0].shape

    def size(self, name: str) -> int:
        """Return the size of a tensor in the files, in bytes."""
        return math.prod(self.shape(name)) * self.pieces[name][0].ours.element_size()

    def tensor(self, name: str) -> Tensor:
        """Return a tensor in the form of the files, on the CPU."""
        pieces = self.pieces[name]
        tensor = torch.empty(self.shape(name), dtype=pieces[0].ours.dtype, device="cpu")
        for piece in pieces:
            piece.theirs(tensor).copy_(piece.ours)
        return tensor

    def knows(self, name: str) -> bool:
        """Return whether files may have a tensor of this name."""
        return name in self.pieces or name in self.tied or self.is_ignored(name)

    def is_ignored(self, name: str) -> bool:
        """Return whether to ignore a tensor of this name."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.ignored)


def layout_of(
    family: Family, model: nn.Module, settings: Mapping[str, Any], *, merge: bool = False
) -> Layout:
    """Return the layout of a model of a family.

    Args:
      family: the family, which defines the names.
      model: the model, possibly on the meta device.
      settings: settings of the model, for forms that depend on sizes.
      merge: whether to merge low-rank adapters into copies of their weights.

    Raises:
      ConfigError: the family has no name for a parameter or buffer; paths among its `tensors` that
        fit no parameter are named, too.
    """
    tensors = family.tensors
    if callable(tensors):
        tensors = tensors(family.complete(settings))
    layout = Layout(ignored=(*_IGNORED, *family.ignored))
    nameless: list[str] = []
    first: dict[int, str] = {}
    saved = tensors_of(model)
    if merge:
        saved = {path: _merged(model, path, tensor) for path, tensor in saved.items()}
    for path, tensor in saved.items():
        pieces = list(_pieces(tensors, path, tensor))
        if not pieces:
            nameless.append(path)
        elif id(tensor) in first:
            layout.tied[pieces[0].name] = first[id(tensor)]
        else:
            first[id(tensor)] = pieces[0].name
            for piece in pieces:
                layout.pieces.setdefault(piece.name, []).append(piece)
                layout.paths.setdefault(piece.name, path)
    if nameless:
        listed = ", ".join(nameless[:12])
        every = [*saved, *(re.sub(r"\.\d+\.", ".*.", path, count=1) for path in saved)]
        holders = (itertools.accumulate(path.split("."), "{}.{}".format) for path in every)
        known = {*itertools.chain(*holders)}
        unused = ", ".join([path for path in tensors if path not in known][:12])
        also = f"; no parameter has these paths of its `tensors`: {unused}" if unused else ""
        raise ConfigError(f"{family.architecture} has no tensor for {listed}{also}.")
    return layout


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model to save, by path; tied ones under each of their paths."""
    saved = model.state_dict(keep_vars=True)
    adapters = {path for path, parameter in model.named_parameters() if is_adapter(path, parameter)}
    return {path: tensor for path, tensor in saved.items() if path not in adapters}


def _merged(model: nn.Module, path: str, tensor: Tensor) -> Tensor:
    """Return a parameter with its adapter merged."""
    holder_path, _, name = path.rpartition(".")
    holder = model.get_submodule(holder_path)
    if isinstance(holder, LoRALinear) and name == "weight":
        return holder.merged_weight().detach()
    if isinstance(holder, StackedExperts) and name in holder.adapters:
        return holder.merged_weight(name).detach()
    return tensor


def _pieces(tensors: Tensors, path: str, tensor: Tensor) -> Iterator[Piece]:
    """Yield the pieces of one parameter, by the longest known part of its path.

    A path of a single layer, where layers of a kind differ, comes before the path of all layers.
    """
    layer = next(iter(re.findall(r"(?<=\.)\d+(?=\.)", path)), "")
    holder, rest, pieces = path, "", None
    while holder and pieces is None:
        pieces = tensors.get(holder) or tensors.get(re.sub(r"\.\d+\.", ".*.", holder, count=1))
        if pieces is None:
            holder, _, last = holder.rpartition(".")
            rest = f".{last}{rest}"
    if pieces is None:
        return
    form: Form = Same(pieces) if isinstance(pieces, str) else pieces
    for piece in form.pieces(tensor.detach()):
        yield piece._replace(name=f"{piece.name.replace('*', layer)}{rest}")


@torch.no_grad()
def write_weights(
    layout: Layout, directory: Path, *, max_shard_size: int, others: Sequence[str] = ()
) -> None:
    """Write the shards, then their index, and remove the weights of an earlier export.

    Args:
      layout: layout of a model that is not on the meta device; it is copied shard by shard.
      directory: an existing directory.
      max_shard_size: maximum bytes per file, unless a single tensor is larger.
      others: names of files that will be written beside them.

    Raises:
      ConfigError: there is such a file, or weights, that no export has written.
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
    there = [path.name for path in directory.iterdir() if _OURS.fullmatch(path.name)]
    try:
        listed = list_own(directory, [*names, INDEX, *others], replaces=[*there, *others])
    except FileExistsError as error:
        raise ConfigError(
            f"{error.filename} would be lost, and no export has written it: name another "
            "directory, such as one that does not exist yet."
        ) from None
    for name, inside in zip(names, shards, strict=True):
        with atomic_path(directory / name) as draft:
            draft.touch()
            mode = draft.stat().st_mode
            save_file({name: layout.tensor(name) for name in inside}, draft, {"format": "pt"})
            draft.chmod(mode)  # safetensors creates files readable only by their owner
    if count > 1:
        files = {key: name for name, inside in zip(names, shards, strict=True) for key in inside}
        total = {"total_size": sum(map(layout.size, files))}
        write_json(directory / INDEX, {"metadata": total, "weight_map": files})
        names.append(INDEX)
    for name in listed.intersection(there).difference(names):
        (directory / name).unlink(missing_ok=True)

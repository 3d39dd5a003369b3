"""The tensors of a model's files, each with the views of our parameters that lie in it."""

import fnmatch
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from fidgpt.configs.hub import Family, Form, Piece, Same, Tensors
from fidgpt.graph import ConfigError
from fidgpt.model import LoRALinear, StackedExperts, is_adapter

# Buffers of old files that follow from config.json.
_SPARE = ("*.rotary_emb.inv_freq",)


@dataclass
class Layout:
    """Where a model's parameters and buffers lie in files.

    Attributes:
      pieces: by the name of each tensor in the files.
      paths: of our parameter, or of one of those that lie in the tensor.
      tied: names under which a tied table might be saved once more, with that of the first.
      spare: patterns of names that say nothing.
    """

    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    spare: tuple[str, ...] = _SPARE

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor in the files."""
        return self.pieces[name][0].shape

    def knows(self, name: str) -> bool:
        """Whether files may hold a tensor of this name."""
        return name in self.pieces or name in self.tied or self.is_spare(name)

    def is_spare(self, name: str) -> bool:
        """Whether files may hold a tensor of this name, and nothing is lost without it."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.spare)


def layout_of(
    family: Family, model: nn.Module, settings: Mapping[str, Any], *, merge: bool = False
) -> Layout:
    """The layout of a model that is built as the family is.

    Args:
      family: knows the names.
      model: with memory or without.
      settings: of the member, for forms that know sizes.
      merge: whether low-rank adapters are added to the weights beside them, in copies of these.

    Raises:
      ConfigError: the family has no name for a parameter or buffer.
    """
    tensors = _tensors(family, settings)
    layout = Layout(spare=(*_SPARE, *family.spare))
    nameless: list[str] = []
    first: dict[int, str] = {}
    ours = list(_ours(model, merge=merge))
    for path, tensor in ours:
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
        raise ConfigError(f"{family.architecture} has no tensor for {listed}.")
    return layout


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """What is saved of a model, by path, a tied table under each of its paths; no adapters."""
    saved = model.state_dict(keep_vars=True)
    adapters = {path for path, one in model.named_parameters() if is_adapter(path, one)}
    return {path: tensor for path, tensor in saved.items() if path not in adapters}


def _tensors(family: Family, settings: Mapping[str, Any]) -> Tensors:
    if not callable(family.tensors):
        return family.tensors
    parameters = inspect.signature(family.config).parameters
    return family.tensors({name: one.default for name, one in parameters.items()} | dict(settings))


def _ours(model: nn.Module, *, merge: bool) -> Iterator[tuple[str, Tensor]]:
    for path, tensor in tensors_of(model).items():
        holder, _, name = path.rpartition(".")
        yield path, _merged(model.get_submodule(holder), name, tensor) if merge else tensor


def _merged(holder: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """What a part holds under a name, with what an adapter adds to it."""
    if isinstance(holder, LoRALinear) and name == "weight":
        return holder.merged_weight().detach()
    if isinstance(holder, StackedExperts) and name in holder.adapters:
        return holder.merged_weight(name).detach()
    return tensor


def _pieces(tensors: Tensors, path: str, tensor: Tensor) -> Iterator[Piece]:
    """Those of one parameter, by the longest name that leads to it."""
    layer = next(iter(re.findall(r"(?<=\.)\d+(?=\.)", path)), "")
    holder, rest = re.sub(r"\.\d+\.", ".*.", path, count=1), ""
    while holder and holder not in tensors:
        holder, _, last = holder.rpartition(".")
        rest = f".{last}{rest}"
    if not holder:
        return
    said = tensors[holder]
    form: Form = Same(said) if isinstance(said, str) else said
    for piece in form.pieces(tensor.detach()):
        yield piece._replace(name=f"{piece.name.replace('*', layer)}{rest}")

"""Tensors under the hub's names."""

import fnmatch
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
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


_BLOCK = 128
_CODES = "_blocks"  # what names of codes in four bits end with
_GROUP = 32  # numbers that share a scale; two lie in a byte, the first in its lower half
# What four bits mean: a sign, two bits of an exponent and one of a fraction.
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

Shape = tuple[int, ...]


class Coded(NamedTuple):
    """A weight that a file holds as codes and scales.

    Attributes:
      codes: the name of the tensor of codes.
      scales: that of the tensor of scales.
      shape: of what they stand for.
      decode: makes it of both, in float32.
    """

    codes: str
    scales: str
    shape: Shape
    decode: Callable[[Tensor, Tensor], Tensor]


def coded_weights(formats: Mapping[str, str], shapes: Mapping[str, Shape]) -> dict[str, Coded]:
    """The weights that stand in a file as codes for which it has scales that fit, by name."""
    found: dict[str, Coded] = {}
    for name, shape in shapes.items():
        whole = name.removesuffix(_CODES)
        if formats[name] == "F8_E4M3":
            blocks = tuple(-(-size // _BLOCK) for size in shape)
            weight = Coded(name, f"{name}_scale_inv", shape, from_eight_bits)
        elif formats[name] == "U8" and name != whole and shape[3:] == (_GROUP // 2,):
            experts, rows, groups = blocks = shape[:3]
            meant = (experts, groups * _GROUP, rows)
            weight = Coded(name, f"{whole}_scales", meant, from_four_bits)
        else:
            continue
        if shapes.get(weight.scales) == blocks:
            found[whole] = weight
    return found


def from_eight_bits(
    codes: Float[Tensor, "rows columns"], scales: Float[Tensor, "row_blocks column_blocks"]
) -> Float[Tensor, "rows columns"]:
    """Each number times the scale of its block of 128 by 128, in float32.

    (DeepSeek-V3, 2024, arXiv:2412.19437, section 3.3.2.)
    """
    rows, columns = codes.shape
    each = scales.float().repeat_interleave(_BLOCK, 0)[:rows].repeat_interleave(_BLOCK, 1)
    return codes.float().mul_(each[:, :columns])


def from_four_bits(
    codes: UInt8[Tensor, "experts rows groups half"], scales: UInt8[Tensor, "experts rows groups"]
) -> Float[Tensor, "experts columns rows"]:
    """Each number times two to the power of its group's scale, less 127, in float32.

    (MXFP4 of the OCP Microscaling Formats, version 1.0, 2023, sections 5.3.3 and 5.4.1; of the
    matrices that it holds, gpt-oss' files hold the transposed ones elsewhere.)
    """
    experts, rows, groups, half = codes.shape
    numbers = torch.tensor([sign * one for sign in (1.0, -1.0) for one in _MAGNITUDES])
    found = torch.empty(experts, 2 * half * groups, rows)
    for weight, code, scale in zip(found, codes, scales, strict=True):
        pairs = torch.stack([code & 15, code >> 4], dim=-1).flatten(-2).int()
        powers = scale.int().unsqueeze(-1) - 127
        weight.copy_(torch.ldexp(numbers[pairs], powers).flatten(-2).mT)
    return found


def unknown_codes(said: Mapping[str, Any]) -> Iterator[str]:
    """A line where a config.json says that weights are codes of another kind."""
    how = said.get("quantization_config")
    if how is None:
        return
    said = how if isinstance(how, dict) else {}
    kind = (said.get("quant_method"), said.get("weight_block_size"))
    if kind not in (("mxfp4", None), ("fp8", [_BLOCK, _BLOCK])):
        yield (
            f"quantization_config is {how!r:.60}, and fidgpt reads weights in plain numbers, in "
            f"mxfp4, or in fp8 with scales for blocks of {_BLOCK} by {_BLOCK}: load the model with "
            "transformers and dequantize=True in its quantization config, and save it again"
        )

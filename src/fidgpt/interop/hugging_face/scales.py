"""Weights that files hold as codes with scales: DeepSeek-V3's in eight bits, gpt-oss' in four."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

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

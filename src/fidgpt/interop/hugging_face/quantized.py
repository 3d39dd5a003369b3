"""Quantized weights of Hugging Face directories, which are read as the numbers they stand for."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int32, Shaped, UInt8
from torch import Tensor

_BLOCK = 128
_EIGHT_BITS = ("F8_E4M3", "I8")
_INPUT_SCALE = "input_scale"  # of activations, which are not quantized here
# Methods with a scale for each matrix or row, by quant_method and format.
_SCALED = (
    *(("fp8", None), ("fbgemm_fp8", None)),
    *(("compressed-tensors", "float-quantized"), ("compressed-tensors", "int-quantized")),
)
_CODES = "_blocks"  # suffix of the names of four-bit codes
_GROUP = 32  # numbers per scale; a byte holds two, the first in its lower half
# The magnitudes of FP4 E2M1: a sign, two bits of exponent and one of mantissa.
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_WORD = 32  # bits of an integer that holds several codes
_GPTQ, _AWQ, _PACKED = "gptq", "awq", "pack-quantized"
# Bits of a code that divide a word, by method.
_BITS = {_GPTQ: (2, 4, 8), _AWQ: (4,), _PACKED: (4, 8)}
# The key of config.json that names the layout of files, its default, and other layouts.
_LAYOUTS = {_GPTQ: ("checkpoint_format", _GPTQ, f"{_GPTQ}_v2"), _AWQ: ("version", "gemm")}
# The column of each code in a word of AWQ, from the lowest bits on.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

Shape = tuple[int, ...]


class Coded(NamedTuple):
    """A quantized weight, stored as codes and scales.

    Attributes:
      parts: the names of the tensors that `decode` takes, the codes first.
      shape: shape of the dequantized weight.
      decode: dequantizes it to float32.
      unread: names of tensors beside it that say nothing more.
    """

    parts: tuple[str, ...]
    shape: Shape
    decode: Callable[..., Tensor]
    unread: tuple[str, ...] = ()


def coded_weights(
    formats: Mapping[str, str], shapes: Mapping[str, Shape], settings: Mapping[str, Any]
) -> dict[str, Coded]:
    """Return each quantized weight whose scales have the right shape, by its name.

    Args:
      formats: dtype of each tensor by name, in safetensors' notation.
      shapes: shape of each tensor by name.
      settings: of config.json, for codes whose meaning does not follow from shapes.
    """
    how = settings.get("quantization_config")
    if isinstance(how, dict) and (packing := _packing(how)):
        return dict(_packed_weights(*packing, shapes, how))
    weights: dict[str, Coded] = {}
    for name, shape in shapes.items():
        whole = name.removesuffix(_CODES)
        unread = (f"{name.removesuffix('weight')}{_INPUT_SCALE}",)
        if formats[name] in _EIGHT_BITS and (scales := _scales_of(name, shapes)):
            weights[name] = Coded((name, scales), shape, from_scaled_rows, unread)
            continue
        if formats[name] == "F8_E4M3":
            blocks = tuple(-(-size // _BLOCK) for size in shape)
            weight = Coded((name, f"{name}_scale_inv"), shape, from_eight_bits, unread)
        elif formats[name] == "U8" and name != whole and shape[3:] == (_GROUP // 2,):
            experts, rows, groups = blocks = shape[:3]
            meant = (experts, groups * _GROUP, rows)
            weight = Coded((name, f"{whole}_scales"), meant, from_four_bits)
        else:
            continue
        if shapes.get(weight.parts[1]) == blocks:
            weights[whole] = weight
    return weights


def _scales_of(name: str, shapes: Mapping[str, Shape]) -> str | None:
    """Return the name of the scale of a matrix, or of the scales of its rows; None without one."""
    rows = shapes[name][0] if len(shapes[name]) == 2 else 0
    of_matrix, of_rows = ((), (1,), (1, 1)), ((rows, 1), (rows,))
    if shapes.get(f"{name}_scale") in (*of_matrix, *of_rows):
        return f"{name}_scale"
    return f"{name}_scale_inv" if rows and shapes.get(f"{name}_scale_inv") in of_matrix else None


def _packed_weights(
    method: str, bits: int, shapes: Mapping[str, Shape], how: Mapping[str, Any]
) -> Iterator[tuple[str, Coded]]:
    """Yield each weight whose codes are packed in words, after its name."""
    codes, count = "weight_packed" if method == _PACKED else "qweight", _WORD // bits
    for name, (rows, *columns) in shapes.items():
        holder = name.removesuffix(codes)
        if holder == name or len(columns) != 1:
            continue
        others, unread = ("scales", "qzeros"), ()
        if method == _AWQ:
            shape, decode = (columns[0] * count, rows), from_awq
        elif method == _GPTQ:
            others = (*others, "g_idx")
            shape = (columns[0], rows * count)
            # Files of the first format hold each zero less one.
            less = how.get("checkpoint_format", _GPTQ) == _GPTQ
            decode = partial(from_gptq, bits=bits, less=int(less))
        else:
            others, unread = ("weight_scale", "weight_zero_point"), (f"{holder}weight_shape",)
            shape, decode = (rows, columns[0] * count), partial(from_packed_rows, bits=bits)
        there = tuple(f"{holder}{other}" for other in others if f"{holder}{other}" in shapes)
        if len(there) == len(others) or (there and method == _PACKED):  # which may lack zeros
            yield f"{holder}weight", Coded((name, *there), shape, decode, unread)


def from_scaled_rows(
    codes: Shaped[Tensor, "rows columns"], scales: Float[Tensor, "..."]
) -> Float[Tensor, "rows columns"]:
    """Dequantize eight bits: multiply each number by the scale of its row or matrix, in float32.

    (The formats float-quantized and int-quantized of compressed-tensors, and FP8 without blocks.)
    """
    return codes.float().mul_(scales.float().reshape(-1, 1))


def from_eight_bits(
    codes: Float[Tensor, "rows columns"], scales: Float[Tensor, "row_blocks column_blocks"]
) -> Float[Tensor, "rows columns"]:
    """Dequantize FP8: multiply each number by the scale of its 128 x 128 block, in float32.

    (DeepSeek-V3, 2024, arXiv:2412.19437, section 3.3.2.)
    """
    rows, columns = codes.shape
    each = scales.float().repeat_interleave(_BLOCK, 0)[:rows].repeat_interleave(_BLOCK, 1)
    return codes.float().mul_(each[:, :columns])


def from_four_bits(
    codes: UInt8[Tensor, "experts rows groups half"], scales: UInt8[Tensor, "experts rows groups"]
) -> Float[Tensor, "experts columns rows"]:
    """Dequantize MXFP4: multiply each number by 2 ** (its group's scale - 127), in float32.

    (OCP Microscaling Formats, version 1.0, 2023, sections 5.3.3 and 5.4.1; unquantized files of
    gpt-oss have transposed matrices.)
    """
    experts, rows, groups, half = codes.shape
    numbers = torch.tensor([sign * number for sign in (1.0, -1.0) for number in _MAGNITUDES])
    weights = torch.empty(experts, 2 * half * groups, rows)
    for weight, code, scale in zip(weights, codes, scales, strict=True):
        pairs = torch.stack([code & 15, code >> 4], dim=-1).flatten(-2).int()
        powers = scale.int().unsqueeze(-1) - 127
        weight.copy_(torch.ldexp(numbers[pairs], powers).flatten(-2).mT)
    return weights


def _unpack(words: Int32[Tensor, "rows words"], bits: int) -> Int32[Tensor, "rows columns"]:
    """Return the codes in words, the first in the lowest bits."""
    shifts = torch.arange(0, _WORD, bits, dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts & (1 << bits) - 1).flatten(-2)


def from_gptq(
    codes: Int32[Tensor, "words rows"],
    scales: Float[Tensor, "groups rows"],
    zeros: Int32[Tensor, "groups row_words"],
    groups: Int32[Tensor, "columns"],
    *,
    bits: int,
    less: int,
) -> Float[Tensor, "rows columns"]:
    """Dequantize GPTQ: (code - zero) * scale, by the group of each column, in float32.

    (GPTQ, 2022, arXiv:2210.17323; the files of AutoGPTQ and GPTQModel.)

    Args:
      codes: packed along the columns of the weight.
      scales: of each group of columns and each row.
      zeros: packed along the rows.
      groups: the group of each column.
      bits: of a code.
      less: by how much the zeros in the file are too small.
    """
    zero, columns = _unpack(zeros, bits)[:, : scales.shape[1]] + less, groups.long()
    numbers = _unpack(codes.T, bits).T - zero[columns]
    return numbers.float().mul_(scales.float()[columns]).T.contiguous()


def from_awq(
    codes: Int32[Tensor, "columns words"],
    scales: Float[Tensor, "groups rows"],
    zeros: Int32[Tensor, "groups words"],
) -> Float[Tensor, "rows columns"]:
    """Dequantize AWQ: (code - zero) * scale, by groups of columns, in float32.

    (AWQ, 2023, arXiv:2306.00978; AutoAWQ's layout `gemm`, whose words hold the codes of eight rows
    of the weight, first the even and then the odd ones.)
    """
    size, count = len(codes) // len(scales), len(_AWQ_ORDER)
    order = torch.tensor(_AWQ_ORDER).argsort()
    code, zero = (
        _unpack(words, _WORD // count).unflatten(1, (-1, count))[..., order].flatten(1)
        for words in (codes, zeros)
    )
    numbers = code - zero.repeat_interleave(size, 0)
    return numbers.float().mul_(scales.float().repeat_interleave(size, 0)).T.contiguous()


def from_packed_rows(
    codes: Int32[Tensor, "rows words"],
    scales: Float[Tensor, "rows groups"],
    zeros: Int32[Tensor, "row_words groups"] | None = None,
    *,
    bits: int,
) -> Float[Tensor, "rows columns"]:
    """Dequantize pack-quantized weights: (code - zero) * scale, by groups of columns, in float32.

    (compressed-tensors; without zeros the middle of the codes is zero.)
    """
    numbers = _unpack(codes, bits)
    size = numbers.shape[1] // scales.shape[1]
    if zeros is None:
        numbers -= 1 << (bits - 1)
    else:
        zero = _unpack(zeros.T, bits).T[: len(codes)]
        numbers -= zero.repeat_interleave(size, 1)
    return numbers.float().mul_(scales.float().repeat_interleave(size, 1))


def _packing(how: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the method and the bits of codes that are packed in words; None for others."""
    method = str(how.get("quant_method"))
    bits: Any = how.get("bits")
    if method == "compressed-tensors" and isinstance(groups := how.get("config_groups"), dict):
        method = str(how.get("format"))
        each = [group.get("weights") or {} for group in groups.values()]
        bits = each[0].get("num_bits") if each and all(group == each[0] for group in each) else None
    key, default, *others = _LAYOUTS.get(method, ("", None))
    is_known = how.get(key, default) in (default, *others) and bits in _BITS.get(method, ())
    return (method, bits) if is_known else None


def unknown_codes(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error if a config.json declares an unsupported quantization."""
    how = settings.get("quantization_config")
    declared = how if isinstance(how, dict) else {}
    kind = (declared.get("quant_method"), declared.get("weight_block_size"))
    is_scaled = kind[1] is None and (kind[0], declared.get("format")) in _SCALED
    is_known = is_scaled or kind in (("mxfp4", None), ("fp8", [_BLOCK, _BLOCK]))
    if how is not None and not is_known and _packing(declared) is None:
        yield (
            f"quantization_config is {how!r:.60}, but fidgpt reads only unquantized weights, "
            f"mxfp4, fp8 with scales for blocks of {_BLOCK} by {_BLOCK}, eight bits with scales "
            "for rows or matrices, gptq of 2, 4 or 8 bits, awq of 4 bits in the version gemm, and "
            "pack-quantized of 4 or 8 bits; load the model with transformers and dequantize=True "
            "in its quantization config, and save it again"
        )

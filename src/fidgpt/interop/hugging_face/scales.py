"""Weights that files hold in eight bits with a scale for each block, as those of DeepSeek-V3."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

_BLOCK = 128
_CODES = "F8_E4M3"


def scales_of(formats: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """For each weight in eight bits the tensor that holds the scales of its blocks."""
    named = {name: f"{name}_scale_inv" for name in formats if formats[name] == _CODES}
    return {
        name: scales
        for name, scales in named.items()
        if shapes.get(scales) == tuple(-(-size // _BLOCK) for size in shapes[name])
    }


def scaled(
    codes: Float[Tensor, "rows columns"], scales: Float[Tensor, "row_blocks column_blocks"]
) -> Float[Tensor, "rows columns"]:
    """Each number times the scale of its block of 128 by 128, in float32.

    (DeepSeek-V3, 2024, arXiv:2412.19437, section 3.3.2.)
    """
    rows, columns = codes.shape
    each = scales.float().repeat_interleave(_BLOCK, 0)[:rows].repeat_interleave(_BLOCK, 1)
    return codes.float().mul_(each[:, :columns])


def unknown_codes(said: Mapping[str, Any]) -> Iterator[str]:
    """A line where a config.json says that weights are codes of another kind."""
    how = said.get("quantization_config")
    if how is None:
        return
    kind = (how.get("quant_method"), how.get("weight_block_size")) if isinstance(how, dict) else how
    if kind != ("fp8", [_BLOCK, _BLOCK]):
        yield (
            f"quantization_config is {how!r:.60}, and fidgpt reads weights in plain numbers, or in "
            f"fp8 with scales for blocks of {_BLOCK} by {_BLOCK}: load the model with transformers "
            "and dequantize=True in its quantization config, and save it again"
        )

"""Attention by whichever form is fastest for the device, the number format and the case."""

import torch
from jaxtyping import Float
from torch import Tensor

from fidgpt.model.kernels.blockwise import blockwise
from fidgpt.model.kernels.flex import flex
from fidgpt.model.kernels.scoring import Kernel, Scoring
from fidgpt.model.kernels.sdpa import sdpa


def fastest(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    scoring: Scoring,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Torch's own kernel for plain attention, except where it is not the fastest.

    In bfloat16 on a CPU its backward pass takes 1.7 to 4 times as long as plain matrix products.
    On a GPU, what is not plain goes to FlexAttention, which skips what the mask hides.
    """
    return fastest_on(query.device.type, query.dtype, scoring)(query, key, value, scoring)


def fastest_on(device_type: str, dtype: torch.dtype, scoring: Scoring) -> Kernel:
    """The form that `fastest` takes on a kind of device, such as `cuda`."""
    plain = scoring.is_softmax and (scoring.is_causal or scoring.sees_all)
    if device_type == "cuda" and not plain:
        return flex
    if device_type == "cpu" and dtype == torch.bfloat16:
        return blockwise
    return sdpa

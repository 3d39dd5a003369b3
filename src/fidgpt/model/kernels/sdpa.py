"""Attention by torch's scaled_dot_product_attention and its kernels."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fidgpt.model.kernels.dense import dense
from fidgpt.model.kernels.scoring import Scoring


def sdpa(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    scoring: Scoring,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """What is a softmax of scaled products under a mask; the rest is left to `dense`."""
    if not scoring.is_softmax:
        return dense(query, key, value, scoring)
    causal = scoring.is_causal
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if causal or scoring.sees_all else scoring.visible(),
        is_causal=causal,
        dropout_p=scoring.dropout,
        scale=scoring.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )

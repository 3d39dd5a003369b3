"""Sizes and scale of latent attention, in the proportions of DeepSeek."""

import math


def latent_rank(*, head_dim: int) -> int:
    """Size of the latent, 4 * head_dim as in DeepSeek-V2 (arXiv:2405.04434, section 3.1.2)."""
    return 4 * head_dim


def rotary_share(*, head_dim: int) -> int:
    """Dimensions that turn beside those of a head: half as many, as there, and an even number."""
    return max(2, head_dim // 4 * 2)


def yarn_scale(
    *, head_dim: int, rope_head_dim: int, factor: float, mscale_all_dim: float = 1.0
) -> float:
    """The scale of a model whose RoPE is stretched by YaRN, as DeepSeek's own code has it.

    `(0.1 * mscale_all_dim * ln(factor) + 1)^2 / sqrt(head_dim + rope_head_dim)`: what `YaRN`
    would do by an amplitude to the dimensions that turn is done here to all of a head (Peng et
    al., 2023, arXiv:2309.00071, section 3.4). The amplitude is then 1.

    Args:
      head_dim: dimensions of a head that do not turn.
      rope_head_dim: those that turn.
      factor: how many times as long the new sequences are.
      mscale_all_dim: how much of the sharpening is wanted; 0 for none.
    """
    sharper = 0.1 * mscale_all_dim * math.log(max(1.0, factor)) + 1
    return sharper**2 / math.sqrt(head_dim + rope_head_dim)

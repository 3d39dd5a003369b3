"""Compute-optimal hyperparameters, from the depth and the width of a model.

A layer of width d has 12 d^2 parameters N, and a run on 20 tokens per parameter takes
C = 6 N * 20 N floating-point operations (Hoffmann et al., 2022, arXiv:2203.15556).
"""

import math

from fidgpt.ranges import require_positive, require_size

__all__ = [
    "optimal_batch_size",
    "optimal_learning_rate",
    "optimal_tokens",
    "power_lines_batch_size",
]

_TOKENS_PER_PARAMETER = 20
_FINENESS = 8  # batches are rounded by a sixteenth at most


def optimal_tokens(*, num_layers: int, hidden_dim: int) -> int:
    """Return the tokens of a run: 20 per parameter of the layers.

    Raises:
      ValueError: a size is below 1.
    """
    return _TOKENS_PER_PARAMETER * _parameters(num_layers, hidden_dim)


def optimal_batch_size(
    *, num_layers: int, hidden_dim: int, seq_len: int, multiple_of: int = 8
) -> int:
    """Return the sequences of a batch of about 0.2920 C^0.3271 tokens.

    They are a multiple of `multiple_of` times a power of two, with at most 16 such units, and at
    least one (DeepSeek LLM, 2024, arXiv:2401.02954, section 3.1).

    Args:
      num_layers: number of layers.
      hidden_dim: width of the model.
      seq_len: tokens per sequence.
      multiple_of: a divisor of the batch, such as the number of processes.

    Raises:
      ValueError: an argument is below 1.
    """
    require_size(seq_len=seq_len, multiple_of=multiple_of)
    batch = 0.2920 * _operations(num_layers, hidden_dim) ** 0.3271 / seq_len
    unit = multiple_of
    while 2 * unit * _FINENESS <= batch:
        unit *= 2
    return max(1, round(batch / unit)) * unit


def optimal_learning_rate(*, num_layers: int, hidden_dim: int) -> float:
    """Return the peak learning rate 0.3118 C^-0.1250, to two digits (DeepSeek LLM, 2024).

    Raises:
      ValueError: a size is below 1.
    """
    return float(f"{0.3118 * _operations(num_layers, hidden_dim) ** -0.1250:.2g}")


def power_lines_batch_size(*, share: float, seq_len: int) -> int:
    """Return sequences of a batch, whose tokens are a power of two near `2^19 * share^0.383`.

    The optimum grows with the tokens of a run by this power (Bergsma et al., 2025,
    arXiv:2505.13738); nanochat found 2^19 for its model of 12 layers.

    Args:
      share: tokens of the run relative to the tokens of that model.
      seq_len: tokens of a sequence.

    Raises:
      ValueError: an argument is not above 0.
    """
    require_positive(share=share)
    require_size(seq_len=seq_len)
    return max(1, 2 ** round(19 + 0.383 * math.log2(share)) // seq_len)


def _parameters(num_layers: int, hidden_dim: int) -> int:
    require_size(num_layers=num_layers, hidden_dim=hidden_dim)
    return 12 * num_layers * hidden_dim**2


def _operations(num_layers: int, hidden_dim: int) -> int:
    return 6 * _TOKENS_PER_PARAMETER * _parameters(num_layers, hidden_dim) ** 2

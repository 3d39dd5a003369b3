"""How a RoPE reaches beyond the lengths it was trained with: each is a part of `RoPE`."""

import math
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

Frequencies = Float[Tensor, " pairs"]


@runtime_checkable
class RoPEScaling(Protocol):
    """Changes how fast each pair of dimensions turns.

    Attributes:
      amplitude: what cosine and sine are multiplied with, 1 for most.
    """

    amplitude: float

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        """The new radians a position of each pair; `frequencies` are theta^(-2i / rotary_dim)."""
        ...


class LinearScaling:
    """Positions are squeezed together by `factor` (Chen et al., 2023, arXiv:2306.15595)."""

    amplitude = 1.0

    def __init__(self, *, factor: float) -> None:
        self.check_arguments(factor=factor)
        self.factor = factor

    @staticmethod
    def check_arguments(*, factor: float) -> None:
        """Raises ValueError unless waves get a length."""
        _require_factor(factor)

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        return frequencies / self.factor


class NTKScaling:
    """Slow pairs are slowed by `factor`, fast ones left alone, those between in between.

    The base becomes theta * factor^(d / (d - 2)), so that the slowest of the d / 2 pairs turns
    `factor` times as slowly ("NTK-aware" scaling; Peng et al., 2023, arXiv:2309.00071, section
    3.1).
    """

    amplitude = 1.0

    def __init__(self, *, factor: float) -> None:
        self.check_arguments(factor=factor)
        self.factor = factor

    @staticmethod
    def check_arguments(*, factor: float) -> None:
        """Raises ValueError unless waves get a length."""
        _require_factor(factor)

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        pairs = len(frequencies)
        if pairs == 1:
            return frequencies
        shares = torch.arange(pairs, device=frequencies.device, dtype=frequencies.dtype)
        return frequencies * self.factor ** (-shares / (pairs - 1))


class YaRN:
    """Pairs that turn often within the old length are left alone, those that hardly turn slowed.

    Between `beta_fast` and `beta_slow` turns the two are mixed, and attention is sharpened by an
    amplitude of 0.1 ln(factor) + 1 (Peng et al., 2023, arXiv:2309.00071, sections 3.2 to 3.4).

    Args:
      factor: how many times as long the new sequences are.
      original_seq_len: the length that the model was trained with, in tokens.
      beta_fast: turns within the old length from which on a pair is left alone.
      beta_slow: turns up to which a pair is slowed by the whole factor.
      amplitude: of cosine and sine; by the formula unless said.
      truncate: whether the ends of the mixture are whole numbers of pairs, as in the paper's code.
      sharpness: how much latent attention sharpens whole heads besides; see `yarn_scale`.
    """

    def __init__(
        self,
        *,
        factor: float,
        original_seq_len: int,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        amplitude: float | None = None,
        truncate: bool = True,
        sharpness: float = 0.0,
    ) -> None:
        self.factor = factor
        self.original_seq_len = original_seq_len
        self.beta_fast = beta_fast
        self.beta_slow = beta_slow
        self.amplitude = max(1.0, 0.1 * math.log(factor) + 1) if amplitude is None else amplitude
        self.truncate = truncate
        self.sharpness = sharpness

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        pairs = len(frequencies)
        low, high = (self._pair(beta, pairs, theta) for beta in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        places = torch.arange(pairs, device=frequencies.device, dtype=frequencies.dtype)
        slowed = ((places - low) / max(high - low, 1e-3)).clamp(0, 1)
        return frequencies * (1 - slowed) + frequencies / self.factor * slowed

    def _pair(self, turns: float, pairs: int, theta: float) -> float:
        """Which pair turns so often within the old length."""
        ratio = self.original_seq_len / (turns * 2 * math.pi)
        return pairs * math.log(ratio) / math.log(theta)


class Llama3Scaling:
    """Waves longer than the old length are stretched by `factor`, short ones left alone.

    Between `original_seq_len / high_freq_factor` and `original_seq_len / low_freq_factor` the two
    are mixed (Grattafiori et al., 2024, arXiv:2407.21783; the formula is that of the model's
    published code).

    Args:
      factor: how many times as long the longest waves become.
      original_seq_len: the length that the model was trained with, in tokens.
      low_freq_factor: waves longer than original_seq_len / low_freq_factor are stretched whole.
      high_freq_factor: waves shorter than original_seq_len / high_freq_factor are left alone.
    """

    amplitude = 1.0

    def __init__(
        self,
        *,
        factor: float = 8.0,
        original_seq_len: int = 8192,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
    ) -> None:
        self.factor = factor
        self.original_seq_len = original_seq_len
        self.low_freq_factor = low_freq_factor
        self.high_freq_factor = high_freq_factor

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        waves_that_fit = self.original_seq_len * frequencies / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        kept = ((waves_that_fit - self.low_freq_factor) / span).clamp(0, 1)
        return frequencies * kept + frequencies / self.factor * (1 - kept)


def _require_factor(factor: float) -> None:
    if not factor > 0:
        raise ValueError(f"{factor=} stretches waves to no length: use a number above 0.")

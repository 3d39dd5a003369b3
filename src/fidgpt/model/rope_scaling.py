"""Scalings of rotary position embeddings, for longer sequences than in training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fidgpt.ranges import require_positive

__all__ = [
    "DynamicNTKScaling",
    "LengthScaling",
    "LinearScaling",
    "Llama3Scaling",
    "LongRoPE",
    "NTKScaling",
    "PartialRotation",
    "RoPEScaling",
    "YaRN",
]


Frequencies = Float[Tensor, " pairs"]


@runtime_checkable
class RoPEScaling(Protocol):
    """Scales the frequencies of rotary embeddings.

    Attributes:
      amplitude: factor of cosine and sine; 1 for most scalings.
    """

    amplitude: float

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        """Return scaled frequencies in radians per position, given theta^(-2i / rotary_dim)."""
        ...


class LinearScaling:
    """Divides all frequencies by `factor` (Chen et al., 2023, arXiv:2306.15595)."""

    amplitude = 1.0

    def __init__(self, *, factor: float) -> None:
        require_positive(factor=factor)
        self.factor = factor

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        return frequencies / self.factor


class PartialRotation:
    """Stops all but the first pairs of a whole head, with the frequencies that these have there.

    As in Gemma 4 and LFM3. In RoPE over a part of a head, the dimensions of a pair lie closer.

    Args:
      share: of the pairs that rotate, rounded down.
      factor: divides their frequencies.
    """

    amplitude = 1.0

    def __init__(self, *, share: float, factor: float = 1.0) -> None:
        require_positive(share=share, factor=factor)
        self.share = share
        self.factor = factor

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        turning = int(self.share * len(frequencies))
        rest = torch.zeros_like(frequencies[turning:])
        return torch.cat([frequencies[:turning] / self.factor, rest])


class NTKScaling:
    """NTK-aware scaling: changes the base to theta * factor^(d / (d - 2)) for d rotary dimensions.

    The lowest of the d / 2 frequencies is divided by `factor`, and the highest is unchanged (Peng
    et al., 2023, arXiv:2309.00071, section 3.1).
    """

    amplitude = 1.0

    def __init__(self, *, factor: float) -> None:
        require_positive(factor=factor)
        self.factor = factor

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        pairs = len(frequencies)
        if pairs == 1:
            return frequencies
        shares = torch.arange(pairs, device=frequencies.device, dtype=frequencies.dtype)
        return frequencies * self.factor ** (-shares / (pairs - 1))


class YaRN:
    """YaRN: keeps high frequencies and divides low ones by `factor`, with a linear ramp between.

    The ramp goes from `beta_fast` to `beta_slow` rotations within the original length. Cosine and
    sine are multiplied by 0.1 ln(factor) + 1, which lowers the softmax temperature (Peng et al.,
    2023, arXiv:2309.00071, sections 3.2 to 3.4).

    Args:
      factor: ratio of the extended sequence length to the original one.
      original_seq_len: sequence length of the original training, in tokens.
      beta_fast: rotations within the original length from which frequencies are kept.
      beta_slow: rotations up to which frequencies are divided by the full factor.
      amplitude: factor of cosine and sine; defaults to 0.1 ln(factor) + 1.
      truncate: rounds the ends of the ramp to whole dimensions, as in the paper's code.
      sharpness: `mscale_all_dim` of latent attention; see `yarn_scale`.
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
        """Return the fractional index of the pair with `turns` rotations in the original length."""
        ratio = self.original_seq_len / (turns * 2 * math.pi)
        return pairs * math.log(ratio) / math.log(theta)


@dataclass(eq=False, kw_only=True)
class Llama3Scaling:
    """Llama 3's scaling: multiplies long wavelengths by `factor`, and keeps short ones.

    Wavelengths from `original_seq_len / high_freq_factor` to `original_seq_len / low_freq_factor`
    are interpolated (Grattafiori et al., 2024, arXiv:2407.21783; as in the model's published code).

    Args:
      factor: factor of the longest wavelengths.
      original_seq_len: sequence length of the original training, in tokens.
      low_freq_factor: longer wavelengths than original_seq_len / low_freq_factor are stretched.
      high_freq_factor: shorter wavelengths than original_seq_len / high_freq_factor are kept.
    """

    amplitude = 1.0

    factor: float = 8.0
    original_seq_len: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        waves_that_fit = self.original_seq_len * frequencies / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        kept = ((waves_that_fit - self.low_freq_factor) / span).clamp(0, 1)
        return frequencies * kept + frequencies / self.factor * (1 - kept)


@runtime_checkable
class LengthScaling(RoPEScaling, Protocol):
    """Scales the frequencies by the length of the longest document of a batch.

    Called as `RoPEScaling`, it returns the frequencies of a short one.
    """

    def at_length(
        self, frequencies: Frequencies, *, theta: float, length: Int[Tensor, ""]
    ) -> Frequencies:
        """Return scaled frequencies for documents of up to `length` tokens."""
        ...


class DynamicNTKScaling:
    """NTK-aware scaling by how far a document exceeds the original length, if it does.

    The factor of `NTKScaling` is `factor * length / original_seq_len - (factor - 1)` (Peng et al.,
    2023, arXiv:2309.00071, section 3.3; as in transformers).

    Args:
      factor: how fast the scaling grows.
      original_seq_len: sequence length of the original training, in tokens.
    """

    amplitude = 1.0

    def __init__(self, *, factor: float, original_seq_len: int) -> None:
        require_positive(factor=factor)
        self.factor = factor
        self.original_seq_len = original_seq_len

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        return frequencies

    def at_length(
        self, frequencies: Frequencies, *, theta: float, length: Int[Tensor, ""]
    ) -> Frequencies:
        excess = (length / self.original_seq_len - 1).clamp(min=0)
        pairs = len(frequencies)
        shares = torch.arange(pairs, device=frequencies.device, dtype=frequencies.dtype)
        return frequencies * (1 + self.factor * excess) ** (-shares / max(pairs - 1, 1))


class LongRoPE:
    """LongRoPE: divides each frequency by a factor of its own, and by others in long documents.

    Cosine and sine are multiplied by sqrt(1 + ln(factor) / ln(original_seq_len)) (Ding et al.,
    2024, arXiv:2402.13753; as in Phi-3).

    Args:
      short_factor: divisors of the frequencies in documents of up to the original length.
      long_factor: divisors in longer ones.
      factor: ratio of the extended sequence length to the original one.
      original_seq_len: sequence length of the original training, in tokens.
      amplitude: factor of cosine and sine; defaults to the value of the formula.
    """

    def __init__(
        self,
        *,
        short_factor: Sequence[float],
        long_factor: Sequence[float],
        factor: float,
        original_seq_len: int,
        amplitude: float | None = None,
    ) -> None:
        require_positive(factor=factor)
        self.short_factor = tuple(short_factor)
        self.long_factor = tuple(long_factor)
        self.factor = factor
        self.original_seq_len = original_seq_len
        growth = math.log(max(factor, 1.0)) / math.log(original_seq_len)
        self.amplitude = math.sqrt(1 + growth) if amplitude is None else amplitude

    def __call__(self, frequencies: Frequencies, *, theta: float) -> Frequencies:
        return frequencies / frequencies.new_tensor(self.short_factor)

    def at_length(
        self, frequencies: Frequencies, *, theta: float, length: Int[Tensor, ""]
    ) -> Frequencies:
        long = frequencies / frequencies.new_tensor(self.long_factor)
        return torch.where(length > self.original_seq_len, long, self(frequencies, theta=theta))

"""Position embeddings: rotary, with scaling, and absolute."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fidgpt.model.context import AttentionContext, counted
from fidgpt.model.init import GPT2_NORMAL, Init, with_init
from fidgpt.ranges import require_positive, require_size

__all__ = [
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "NTKScaling",
    "RoPE",
    "RoPEScaling",
    "SinusoidalPositions",
    "YaRN",
    "rotary_dim_of",
]


class LearnedPositions(nn.Module):
    """A learned vector for each position (GPT-2).

    Args:
      seq_len: number of positions.
      hidden_dim: width of the residual stream.
      init: of the vectors.
    """

    def __init__(self, *, seq_len: int, hidden_dim: int, init: Init = GPT2_NORMAL) -> None:
        super().__init__()
        self.weight = with_init(nn.Parameter(torch.empty(seq_len, hidden_dim)), init)

    def forward(self, positions: Int[Tensor, "rows seq"]) -> Float[Tensor, "rows seq hidden"]:
        """Return the vectors of positions.

        Raises:
          ValueError: the sequence is longer than the table.
        """
        count, seq_len = positions.shape[1], self.weight.shape[0]
        if count > seq_len:
            raise ValueError(
                f"a sequence of {count} tokens is longer than the {seq_len} learned positions; "
                "shorten it, or train with a larger seq_len or use_rope."
            )
        return self.weight[positions.clamp_min(0)]


class SinusoidalPositions(nn.Module):
    """Sinusoidal positions, with wavelengths from 2 pi to 2 pi theta.

    Dimension i < hidden_dim / 2 is sin(position * theta^(-2i / hidden_dim)), and dimension i +
    hidden_dim / 2 is the cosine (Vaswani et al., 2017, section 3.5, with sines before cosines as in
    tensor2tensor).

    Args:
      hidden_dim: width of the residual stream; even.
      theta: base of the wavelengths.

    Raises:
      ValueError: hidden_dim is odd, or theta is not above 0.
    """

    def __init__(self, *, hidden_dim: int, theta: float = 10_000.0) -> None:
        super().__init__()
        require_positive(theta=theta)
        if hidden_dim % 2:
            raise ValueError(f"{hidden_dim=} must be even, for pairs of sine and cosine.")
        self.hidden_dim = hidden_dim
        self.theta = theta

    def forward(self, positions: Int[Tensor, "rows seq"]) -> Float[Tensor, "rows seq hidden"]:
        """Return the vectors of positions, in float32."""
        rates = _frequencies(self.theta, self.hidden_dim, positions.device)
        angles = positions.unsqueeze(-1) * rates
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


Frequencies = Float[Tensor, " pairs"]


def _frequencies(theta: float, dim: int, device: torch.device) -> Frequencies:
    """Return theta^(-2i / dim) for each pair of dimensions, in float32."""
    return theta ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)


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


def rotary_dim_of(*, head_dim: int, share: float) -> int:
    """Return how many leading dimensions of a head are a share of it, rounded down.

    Raises:
      ValueError: the share is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"{share=} of a head must be above 0 and at most 1.")
    return int(head_dim * share)


Heads = Float[Tensor, "batch heads seq head_dim"]
KeyHeads = Float[Tensor, "batch kv_heads seq head_dim"]
Waves = Float[Tensor, "rows 1 seq rotary_dim"]


class RoPE(nn.Module):
    """Rotary position embeddings: pairs of dimensions rotate in proportion to the position.

    Dimension i is paired with i + d / 2 of the d rotary dimensions, and pair i is rotated by
    position * theta^(-2i / d) (Su et al., 2021, arXiv:2104.09864, in the half-split layout of
    GPT-NeoX and of Llama checkpoints on the Hugging Face hub). Angles are computed in float32 once
    per pass, at negligible cost, so there is no table with a maximum length. Layers may share one
    RoPE.

    Args:
      head_dim: size of a head; even.
      theta: base of the wavelengths; 10,000 in the paper, larger for longer contexts.
      rotary_dim: number of leading dimensions to rotate; even; defaults to all.
      scaling: scales the frequencies, for longer sequences than in training.

    Raises:
      ValueError: a size is odd, rotary_dim exceeds head_dim, or theta is not above 0.
    """

    def __init__(
        self,
        *,
        head_dim: int,
        theta: float = 10_000.0,
        rotary_dim: int | None = None,
        scaling: RoPEScaling | None = None,
    ) -> None:
        super().__init__()
        require_size(head_dim=head_dim)
        require_positive(theta=theta)
        if rotary_dim is None and head_dim % 2:
            raise ValueError(f"{head_dim=} must be even: RoPE rotates pairs of dimensions.")
        if rotary_dim is not None and (rotary_dim % 2 or not 0 < rotary_dim <= head_dim):
            raise ValueError(
                f"{rotary_dim=} of {head_dim=} cannot be rotated in pairs: use an even number of "
                f"at most {head_dim}."
            )
        self.head_dim = head_dim
        self.theta = theta
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self.scaling = scaling

    def forward(
        self, query: Heads, key: KeyHeads, ctx: AttentionContext | None = None
    ) -> tuple[Heads, KeyHeads]:
        """Rotate queries and keys by their positions; without a context, positions count from 0."""
        ctx = counted(query.shape[2], query.device) if ctx is None else ctx
        cos, sin = self.prepare_pass(ctx, query.dtype)
        return _rotated(query, cos, sin), _rotated(key, cos, sin)

    def prepare_pass(self, ctx: AttentionContext, dtype: torch.dtype) -> tuple[Waves, Waves]:
        """Compute the cosine and the signed sine for each dimension once per pass; return them."""
        return ctx.cached(("rope", self, dtype), partial(self._waves, ctx.positions, dtype))

    def _waves(self, positions: Int[Tensor, "rows seq"], dtype: torch.dtype) -> tuple[Waves, Waves]:
        frequencies = _frequencies(self.theta, self.rotary_dim, positions.device)
        amplitude = 1.0
        if self.scaling is not None:
            frequencies = self.scaling(frequencies, theta=self.theta)
            amplitude = self.scaling.amplitude
        angles = positions[:, None, :, None].float() * frequencies
        cos, sin = ((wave * amplitude).to(dtype) for wave in (angles.cos(), angles.sin()))
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def _rotated(x: Heads, cos: Waves, sin: Waves) -> Heads:
    rotary_dim = cos.shape[-1]
    if rotary_dim < x.shape[-1]:
        turned = _rotated(x[..., :rotary_dim], cos, sin)
        return torch.cat([turned, x[..., rotary_dim:]], dim=-1)
    # Swapping the halves by a flip takes four passes over memory, backward included, instead of
    # nine with chunk and cat; unlike a roll, a flip compiles to vector instructions.
    partners = x.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
    return torch.addcmul(x * cos, partners, sin)

"""Position embeddings: rotary and absolute."""

import math
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fidgpt.model.context import AttentionContext, counted
from fidgpt.model.fields import ExtensibleModule
from fidgpt.model.init import GPT2_NORMAL, Init, with_init
from fidgpt.model.rope_scaling import Frequencies, LengthScaling, RoPEScaling
from fidgpt.ranges import require_positive, require_size

__all__ = [
    "LearnedPositions",
    "OffsetPositions",
    "OffsetSinusoidalPositions",
    "ReversedRoPE",
    "RoPE",
    "Rotation",
    "SinusoidalPositions",
    "Tempered",
    "rotary_dim_of",
]


class LearnedPositions(nn.Module):
    """A learned vector for each position (GPT-2).

    Args:
      seq_len: number of positions.
      hidden_dim: width of the residual stream.
      init: of the vectors.
    """

    offset = 0  # number of rows before the row of position 0

    def __init__(self, *, seq_len: int, hidden_dim: int, init: Init = GPT2_NORMAL) -> None:
        super().__init__()
        self.weight = with_init(nn.Parameter(torch.empty(self.offset + seq_len, hidden_dim)), init)

    @property
    def num_positions(self) -> int:
        """The number of positions."""
        return len(self.weight) - self.offset

    def forward(self, positions: Int[Tensor, "rows seq"]) -> Float[Tensor, "rows seq hidden"]:
        """Return the vectors of positions.

        Raises:
          ValueError: the sequence is longer than the table.
        """
        count, seq_len = positions.shape[1], self.num_positions
        if count > seq_len:
            raise ValueError(
                f"a sequence of {count} tokens is longer than the {seq_len} learned positions; "
                "shorten it, or train with a larger seq_len or use_rope."
            )
        return self.weight[positions.clamp_min(0) + self.offset]


class OffsetPositions(LearnedPositions):
    """Learned positions in a table whose first two rows belong to no position, as in OPT.

    Args:
      seq_len: number of positions.
      hidden_dim: width of the residual stream.
      init: of the vectors.
    """

    offset = 2


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

    offset = 0  # added to positions

    def __init__(self, *, hidden_dim: int, theta: float = 10_000.0) -> None:
        super().__init__()
        require_positive(theta=theta)
        if hidden_dim % 2:
            raise ValueError(f"{hidden_dim=} must be even, for pairs of sine and cosine.")
        self.hidden_dim = hidden_dim
        self.theta = theta

    def forward(self, positions: Int[Tensor, "rows seq"]) -> Float[Tensor, "rows seq hidden"]:
        """Return the vectors of positions, in float32."""
        angles = (positions.unsqueeze(-1) + self.offset) * self.rates(positions.device)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def rates(self, device: torch.device) -> Frequencies:
        """Return the angles of pairs of dimensions per position."""
        return _frequencies(self.theta, self.hidden_dim, device)


class OffsetSinusoidalPositions(SinusoidalPositions):
    """Sinusoidal positions that count from 2, with a longest wave of 2 pi theta (XGLM).

    Args:
      hidden_dim: width of the residual stream; even, and at least 4.
      theta: base of the wavelengths.
    """

    offset = 2

    def rates(self, device: torch.device) -> Frequencies:
        """Return theta^(-i / (hidden_dim / 2 - 1)) for pair i."""
        pairs = self.hidden_dim // 2
        places = torch.arange(pairs, device=device, dtype=torch.float32)
        return torch.exp(places * (-math.log(self.theta) / (pairs - 1)))


def _frequencies(theta: float, dim: int, device: torch.device) -> Frequencies:
    """Return theta^(-2i / dim) for each pair of dimensions, in float32."""
    return theta ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)


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


@runtime_checkable
class Rotation(Protocol):
    """Rotates queries and keys by their positions, as `RoPE` does."""

    def __call__(
        self, query: Heads, key: KeyHeads, ctx: AttentionContext, /
    ) -> tuple[Heads, KeyHeads]: ...


Waves = Float[Tensor, "rows 1 seq rotary_dim"]


class RoPE(ExtensibleModule):
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

    def frequencies(self, device: torch.device) -> Frequencies:
        """Return the angles of pairs of dimensions per position, before scaling."""
        return _frequencies(self.theta, self.rotary_dim, device)

    def _waves(self, positions: Int[Tensor, "rows seq"], dtype: torch.dtype) -> tuple[Waves, Waves]:
        frequencies = self.frequencies(positions.device)
        amplitude = 1.0
        if self.scaling is not None:
            scale = self.scaling
            if isinstance(scale, LengthScaling):
                scale = partial(scale.at_length, length=positions.max() + 1)
            frequencies = scale(frequencies, theta=self.theta)
            amplitude = self.scaling.amplitude
        angles = positions[:, None, :, None].float() * frequencies
        cos, sin = ((wave * amplitude).to(dtype) for wave in (angles.cos(), angles.sin()))
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


class ReversedRoPE(RoPE):
    """A RoPE that rotates the other way, as nanochat's weights expect; see `RoPE`."""

    def frequencies(self, device: torch.device) -> Frequencies:
        """Return the frequencies of `RoPE`, rounded as nanochat does."""
        pairs = torch.arange(0, self.rotary_dim, 2, device=device, dtype=torch.float32)
        return 1.0 / self.theta ** (pairs / self.rotary_dim)

    def _waves(self, positions: Int[Tensor, "rows seq"], dtype: torch.dtype) -> tuple[Waves, Waves]:
        cos, sin = super()._waves(positions, dtype)
        return cos, -sin


def _rotated(x: Heads, cos: Waves, sin: Waves) -> Heads:
    rotary_dim = cos.shape[-1]
    if rotary_dim < x.shape[-1]:
        turned = _rotated(x[..., :rotary_dim], cos, sin)
        return torch.cat([turned, x[..., rotary_dim:]], dim=-1)
    # Swapping the halves by a flip takes four passes over memory, backward included, instead of
    # nine with chunk and cat; unlike a roll, a flip compiles to vector instructions.
    partners = x.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
    return torch.addcmul(x * cos, partners, sin)


class Tempered(nn.Module):
    """A rotation after which queries are multiplied by a factor that grows with their position.

    The factor of position p is `1 + strength * ln(1 + floor((p + offset) / span))`, which keeps
    attention sharp over many keys (Nakanishi, 2025, arXiv:2501.19399; Llama 4, Ministral 3).

    Args:
      rotation: rotates queries and keys before; None for no rotation.
      strength: factor of the logarithm.
      span: number of positions of one factor.
      offset: added to positions.
    """

    def __init__(
        self, *, rotation: Rotation | None, strength: float, span: int, offset: int = 0
    ) -> None:
        super().__init__()
        require_size(span=span)
        self.rotation = rotation
        self.strength = strength
        self.span = span
        self.offset = offset

    def forward(self, query: Heads, key: KeyHeads, ctx: AttentionContext) -> tuple[Heads, KeyHeads]:
        if self.rotation is not None:
            query, key = self.rotation(query, key, ctx)
        spans = torch.floor((ctx.positions.float() + self.offset) / self.span).clamp(min=0)
        factor = 1 + self.strength * torch.log1p(spans)
        return query * factor[:, None, :, None].to(query.dtype), key

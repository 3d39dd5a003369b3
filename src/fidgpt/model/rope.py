"""Rotary position embedding: positions as rotations of queries and keys."""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fidgpt.model.layout import Layout, counted
from fidgpt.model.rope_scaling import RoPEScaling
from fidgpt.ranges import require_positive, require_size

Heads = Float[Tensor, "batch heads seq head_dim"]


class RoPE(nn.Module):
    """Turns each pair of dimensions by an angle that grows with the position.

    Dimension i is paired with i + head_dim / 2, and pair i turns by position * theta^(-2i /
    head_dim) (Su et al., 2021, arXiv:2104.09864, in the half-split layout of
    GPT-NeoX and Llama checkpoints on the Hugging Face hub). Angles are computed in float32 once a
    pass: they cost nothing beside the attention they serve, and there is no table to move between
    devices or to outgrow. One RoPE may serve every layer.

    Args:
      head_dim: size of a head; even.
      theta: the base of the wavelengths; 10,000 in the paper, larger for longer contexts.
      rotary_dim: how many dimensions are turned, the first ones; even, and all unless said.
      scaling: changes how fast pairs turn, to reach beyond the lengths seen in training.

    Raises:
      ValueError: a dimension would have no partner, rotary_dim is more than there are, or theta is
        not above 0.
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
        self.check_arguments(head_dim=head_dim, theta=theta, rotary_dim=rotary_dim)
        self.head_dim = head_dim
        self.theta = theta
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self.scaling = scaling

    @staticmethod
    def check_arguments(*, head_dim: int, theta: float, rotary_dim: int | None) -> None:
        """Raises ValueError unless an even number of the dimensions that there are is turned."""
        require_size("head_dim", head_dim)
        require_positive("theta", theta)
        if rotary_dim is None and head_dim % 2:
            raise ValueError(f"{head_dim=} is odd, and RoPE turns pairs: use an even head_dim.")
        if rotary_dim is not None and (rotary_dim % 2 or not 0 < rotary_dim <= head_dim):
            raise ValueError(
                f"{rotary_dim=} of {head_dim=} cannot be turned in pairs: use an even number of "
                f"at most {head_dim}."
            )

    def forward(
        self,
        query: Heads,
        key: Float[Tensor, "batch kv_heads seq head_dim"],
        layout: Layout | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys by where they stand; from 0 on unless a layout says."""
        layout = Layout(counted(query.shape[2], query.device)) if layout is None else layout
        make = partial(self._waves, layout.places.positions, query.dtype)
        cos, sin = layout.once(("rope", id(self), query.dtype), make)
        return _rotated(query, cos, sin), _rotated(key, cos, sin)

    def _waves(
        self, positions: Int[Tensor, "rows seq"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "rows 1 seq rotary_dim"], Float[Tensor, "rows 1 seq rotary_dim"]]:
        """The cosine and the signed sine that each dimension and its partner are weighed by."""
        exponents = torch.arange(
            0, self.rotary_dim, 2, device=positions.device, dtype=torch.float32
        )
        frequencies = self.theta ** (-exponents / self.rotary_dim)
        amplitude = 1.0
        if self.scaling is not None:
            frequencies = self.scaling(frequencies, theta=self.theta)
            amplitude = self.scaling.amplitude
        angles = positions[:, None, :, None].float() * frequencies
        cos, sin = ((wave * amplitude).to(dtype) for wave in (angles.cos(), angles.sin()))
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def _rotated(
    x: Heads,
    cos: Float[Tensor, "rows 1 seq rotary_dim"],
    sin: Float[Tensor, "rows 1 seq rotary_dim"],
) -> Heads:
    rotary_dim = cos.shape[-1]
    if rotary_dim < x.shape[-1]:
        turned = _rotated(x[..., :rotary_dim], cos, sin)
        return torch.cat([turned, x[..., rotary_dim:]], dim=-1)
    # Halves change places, so that every dimension meets its partner: four passes over memory, back
    # included, for the nine of cutting in two and joining. A flip compiles to vectors, a roll does
    # not.
    partners = x.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
    return torch.addcmul(x * cos, partners, sin)

"""Rotary position embedding: positions as rotations of queries and keys."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

Heads = Float[Tensor, "batch heads seq head_dim"]


class RoPE(nn.Module):
    """Turns each pair of dimensions by an angle that grows with the position.

    Dimension i is paired with i + head_dim / 2, and pair i turns by position * theta^(-2i /
    head_dim) (Su et al., 2021, https://arxiv.org/abs/2104.09864, in the half-split layout of
    GPT-NeoX and Llama checkpoints on the Hugging Face hub). Angles are computed in float32 at
    every call: they cost nothing beside the attention they serve, and there is no table to move
    between devices or to outgrow. One RoPE may serve every layer.

    Args:
      head_dim: size of a head; even.
      theta: the base of the wavelengths; 10,000 in the paper, larger for longer contexts.

    Raises:
      ValueError: head_dim is odd.
    """

    def __init__(self, *, head_dim: int, theta: float = 10_000.0) -> None:
        super().__init__()
        self.check_arguments(head_dim=head_dim)
        self.head_dim = head_dim
        self.theta = theta

    @staticmethod
    def check_arguments(*, head_dim: int) -> None:
        """Raises ValueError where a dimension would have no partner."""
        if head_dim % 2:
            raise ValueError(f"{head_dim=} is odd, and RoPE turns pairs: use an even head_dim.")

    def forward(
        self, query: Heads, key: Float[Tensor, "batch kv_heads seq head_dim"]
    ) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys, each [batch, heads, seq, head_dim], by their positions."""
        cos, sin = self._angles(query.shape[-2], query.device, query.dtype)
        return _rotated(query, cos, sin), _rotated(key, cos, sin)

    def _angles(
        self, seq: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "seq head_dim"], Float[Tensor, "seq head_dim"]]:
        """The cosine and the signed sine that each dimension and its partner are weighed by."""
        exponents = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float32)
        frequencies = self.theta ** (-exponents / self.head_dim)
        positions = torch.arange(seq, device=device, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def _rotated(
    x: Heads, cos: Float[Tensor, "seq head_dim"], sin: Float[Tensor, "seq head_dim"]
) -> Heads:
    # Rolled by half, every dimension meets its partner: four passes over memory, back included,
    # for the nine of cutting in two and joining.
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)

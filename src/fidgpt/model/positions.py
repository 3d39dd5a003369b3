"""Where a token stands as a vector that is added to its own."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fidgpt.model.init import GPT2_NORMAL, Init, carry
from fidgpt.ranges import require_positive


class LearnedPositions(nn.Module):
    """A learned vector for each position (GPT-2).

    Args:
      seq_len: positions that there are.
      hidden_dim: width of the residual stream.
      init: start of the vectors.
    """

    def __init__(self, *, seq_len: int, hidden_dim: int, init: Init = GPT2_NORMAL) -> None:
        super().__init__()
        self.weight = carry(nn.Parameter(torch.empty(seq_len, hidden_dim)), init)

    def forward(self, positions: Int[Tensor, "rows seq"]) -> Float[Tensor, "rows seq hidden"]:
        """The vectors of some positions.

        Raises:
          ValueError: there are more of them than the table has rows.
        """
        count, seq_len = positions.shape[1], self.weight.shape[0]
        if count > seq_len:
            raise ValueError(
                f"a sequence of {count} tokens is longer than the {seq_len} learned positions; "
                "shorten it, or train with a larger seq_len or with use_rope."
            )
        return self.weight[positions.clamp_min(0)]


class SinusoidalPositions(nn.Module):
    """Sines and cosines of wavelengths from 2 pi to 2 pi theta, half of the width each.

    Dimension i < hidden_dim / 2 is sin(position * theta^(-2i / hidden_dim)), and its partner half a
    width on the cosine (Vaswani et al., 2017, section 3.5, with the halves side by side as in
    tensor2tensor).

    Args:
      hidden_dim: width of the residual stream; even.
      theta: the base of the wavelengths.

    Raises:
      ValueError: the width is odd, or theta not above 0.
    """

    def __init__(self, *, hidden_dim: int, theta: float = 10_000.0) -> None:
        super().__init__()
        self.check_arguments(hidden_dim=hidden_dim, theta=theta)
        self.hidden_dim = hidden_dim
        self.theta = theta

    @staticmethod
    def check_arguments(*, hidden_dim: int, theta: float) -> None:
        """Raises ValueError unless every sine has its cosine, and theta is above 0."""
        require_positive("theta", theta)
        if hidden_dim % 2:
            raise ValueError(f"{hidden_dim=} is odd, and each sine has a cosine: use an even one.")

    def forward(self, positions: Int[Tensor, "rows seq"]) -> Float[Tensor, "rows seq hidden"]:
        """The vectors of some positions, in float32."""
        exponents = torch.arange(
            0, self.hidden_dim, 2, device=positions.device, dtype=torch.float32
        )
        angles = positions.unsqueeze(-1) * self.theta ** (-exponents / self.hidden_dim)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

"""What happens to each number inside an MLP, beside what torch has under a name of its own."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


def gelu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`x * P(z < x)` for a standard normal z (Hendrycks and Gimpel, 2016, arXiv:1606.08415)."""
    return F.gelu(x)


def gelu_tanh(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """GELU by a tanh that is within 0.0005 of it: what GPT-2 and Gemma were trained with."""
    return F.gelu(x, approximate="tanh")


def squared_relu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`max(x, 0)^2` (Primer, So et al., 2021, arXiv:2109.08668)."""
    return F.relu(x).square()

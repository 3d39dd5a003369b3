"""Low-rank adapters: a Linear that is trained through two thin matrices beside its weight."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, empty, nn

from fidgpt.model.init import GPT2_NORMAL, LECUN_NORMAL, ZEROS, Init, carry
from fidgpt.model.linear import Linear
from fidgpt.ranges import require_positive, require_share


class LoRALinear(Linear):
    """`y = x W^T + b + alpha / rank * x A^T B^T` (Hu et al., 2021, arXiv:2106.09685).

    B starts at zero, so the map starts as that of a plain Linear, whose weights load into it under
    the same names. `lora_a` is A, [rank, in_features], and `lora_b` is B, [out_features, rank].
    Which parameters are trained is for who trains to say: `is_adapter` tells them apart.

    Args:
      in_features: width of what goes in.
      out_features: width of what comes out.
      rank: width between the two thin matrices.
      alpha: how strongly the adapters speak, over the rank; `rank` unless said.
      dropout: probability of dropping what goes into the adapters, in training.
      bias: adds a bias.
      init: start of the weight.
      adapter_init: start of A.

    Raises:
      ValueError: the rank is below 1, or the dropout is no probability below 1.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rank: int,
        alpha: int | float | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        init: Init = GPT2_NORMAL,
        adapter_init: Init = LECUN_NORMAL,
    ) -> None:
        self.check_arguments(rank=rank, alpha=alpha, dropout=dropout)
        super().__init__(in_features, out_features, bias=bias, init=init)
        self.scale = 1.0 if alpha is None else alpha / rank
        self.dropout = dropout
        self.lora_a = carry(nn.Parameter(empty(rank, in_features)), adapter_init)
        self.lora_b = carry(nn.Parameter(empty(out_features, rank)), ZEROS)

    @staticmethod
    def check_arguments(*, rank: int, alpha: int | float | None, dropout: float) -> None:
        """Raises ValueError unless the adapters have a width and keep some of their input."""
        require_positive("alpha", alpha)
        if rank < 1:
            raise ValueError(f"{rank=} leaves no room for adapters; use a rank of 1 or more.")
        require_share("dropout", dropout)

    def forward(self, input: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        heard = F.dropout(input, self.dropout, self.training) if self.dropout else input
        adapted = F.linear(F.linear(heard, self.lora_a), self.lora_b)
        return super().forward(input).add(adapted, alpha=self.scale)

    def merged_weight(self) -> Float[Tensor, "outer inner"]:
        """The weight of the plain Linear that computes the same, but for dropout."""
        return self.weight.addmm(self.lora_b, self.lora_a, alpha=self.scale)

    def own_flops_per_token(self, seq_len: int) -> int:
        """Both thin products, beside the one with `weight` that every Linear counts."""
        return 2 * (self.lora_a.numel() + self.lora_b.numel())


def is_adapter(name: str, parameter: Tensor) -> bool:
    """Whether a parameter of this name, as in `named_parameters`, is one of an adapter's."""
    return name.rpartition(".")[2] in ("lora_a", "lora_b")

"""Low-rank adapters of experts: two thin matrices for each, beside a stacked weight."""

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.init import LECUN_NORMAL, ZEROS, Init, carry
from fidgpt.model.lora import LoRALinear
from fidgpt.model.moe.grouped import Groups, grouped_linear


class StackedLoRA(nn.Module):
    """`alpha / rank * x A_e^T B_e^T` for each row x of expert e: a `LoRALinear` for each expert.

    `lora_a` is A, [num_experts, rank, inside], and `lora_b` is B, [num_experts, outside, rank],
    which starts at zero (Hu et al., 2021, arXiv:2106.09685).

    Args:
      num_experts: how many there are.
      outside: width of what comes out of each.
      inside: width of what goes in.
      rank: width between the two thin matrices.
      alpha: how strongly the adapters speak, over the rank; `rank` unless said.
      dropout: probability of dropping what goes into the adapters, in training.
      adapter_init: start of A.

    Raises:
      ValueError: the rank is below 1, or the dropout is no probability below 1.
    """

    def __init__(
        self,
        num_experts: int,
        outside: int,
        inside: int,
        *,
        rank: int,
        alpha: int | float | None = None,
        dropout: float = 0.0,
        adapter_init: Init = LECUN_NORMAL,
    ) -> None:
        super().__init__()
        self.check_arguments(rank=rank, alpha=alpha, dropout=dropout)
        self.scale = 1.0 if alpha is None else alpha / rank
        self.dropout = dropout
        self.lora_a = carry(nn.Parameter(torch.empty(num_experts, rank, inside)), adapter_init)
        self.lora_b = carry(nn.Parameter(torch.empty(num_experts, outside, rank)), ZEROS)

    @staticmethod
    def check_arguments(*, rank: int, alpha: int | float | None, dropout: float) -> None:
        """Raises ValueError unless the adapters have a width and keep some of their input."""
        LoRALinear.check_arguments(rank=rank, alpha=alpha, dropout=dropout)

    def forward(
        self, rows: Float[Tensor, "rows inside"], groups: Groups
    ) -> Float[Tensor, "rows outside"]:
        heard = F.dropout(rows, self.dropout, self.training) if self.dropout else rows
        thin = grouped_linear(heard, self.lora_a, groups)
        return self.scale * grouped_linear(thin, self.lora_b, groups)

    def merged_into(
        self, weight: Float[Tensor, "experts outside inside"]
    ) -> Float[Tensor, "experts outside inside"]:
        """The matrices that compute the same without adapters, but for dropout."""
        return weight.baddbmm(self.lora_b, self.lora_a, alpha=self.scale)


@runtime_checkable
class AdapterFactory(Protocol):
    """Makes the adapters beside stacked matrices [num_experts, outside, inside].

    `functools.partial(StackedLoRA, rank=8)` is one.
    """

    def __call__(self, num_experts: int, outside: int, inside: int, /) -> StackedLoRA: ...

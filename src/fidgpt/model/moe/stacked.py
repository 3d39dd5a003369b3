"""What experts of every kind have, and those of which all matrices are one parameter."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.init import ZEROS, Init, carry
from fidgpt.model.moe.adapters import AdapterFactory, StackedLoRA
from fidgpt.model.moe.grouped import Groups, grouped_linear


class Experts(nn.Module):
    """What experts of every kind have: stacked weights, and what one of them costs."""

    def __init__(self, *, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts

    def forward(
        self, rows: Float[Tensor, "rows hidden"], groups: Groups
    ) -> Float[Tensor, "rows hidden"]:
        """Each row goes through the expert that is its group."""
        raise NotImplementedError

    def parameters_per_expert(self) -> int:
        """Numbers to learn that one expert holds."""
        return sum(parameter[0].numel() for parameter in self.parameters())

    def flops_per_row(self) -> int:
        """Forward floating-point operations of a row, a multiply-add counted as two."""
        return 2 * sum(p[0].numel() for p in self.parameters() if p.dim() == 3)


class StackedExperts(Experts):
    """Experts whose matrices of one name are one parameter, [num_experts, outside, inside].

    `adapters` holds what is trained beside them, by that name.
    """

    adapters: nn.ModuleDict

    def merged_weight(self, name: str) -> Float[Tensor, "experts outside inside"]:
        """The matrices of a name that compute the same without an adapter, but for dropout."""
        weight = self.get_parameter(name)
        if name not in self.adapters:
            return weight
        return cast(StackedLoRA, self.adapters[name]).merged_into(weight)

    def _stacked(self, outside: int, inside: int, init: Init) -> nn.Parameter:
        return carry(nn.Parameter(torch.empty(self.num_experts, outside, inside)), init)

    def _biases(self, outside: int, bias: bool) -> nn.Parameter | None:
        return carry(nn.Parameter(torch.empty(self.num_experts, outside)), ZEROS) if bias else None

    def _adapt(self, adapter: AdapterFactory | None, *names: str) -> None:
        """Puts an adapter beside the matrices of each name."""
        self.adapters = nn.ModuleDict()
        if adapter is not None:
            self.adapters.update({name: adapter(*self.get_parameter(name).shape) for name in names})

    def _linear(
        self, rows: Float[Tensor, "rows inside"], name: str, groups: Groups
    ) -> Float[Tensor, "rows outside"]:
        """Each row through its expert's matrix of a name, the bias and the adapter of that."""
        out = grouped_linear(rows, getattr(self, name), groups, getattr(self, f"{name}_bias"))
        return out + self.adapters[name](rows, groups) if name in self.adapters else out

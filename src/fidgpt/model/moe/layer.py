"""The mixture-of-experts layer and its balancing."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.linear import Linear
from fidgpt.model.moe.dispatch import Dispatch, dropless
from fidgpt.model.moe.experts import Experts
from fidgpt.model.moe.routing import Router, Routing
from fidgpt.model.reports import report_loss, report_tally
from fidgpt.ranges import require_not_negative

__all__ = [
    "Balancing",
    "GatedShared",
    "LoadBalancingLoss",
    "MoE",
    "RouterZLoss",
    "SequenceBalancingLoss",
]


@runtime_checkable
class Balancing(Protocol):
    """Reports losses that balance the choices of a router in training."""

    def __call__(self, routing: Routing, /) -> None: ...


class LoadBalancingLoss:
    """`weight * num_experts * sum_i f_i P_i`, which is `weight` for an even load.

    f_i is the fraction of all choices that went to expert i, and P_i its mean share of the scores
    (Fedus et al., 2021, Switch, arXiv:2101.03961, equations 4 to 6). Implementations that count f_i
    per token have a loss top_k times as large for the same weight.

    Args:
      weight: of the loss, for each layer; 0.01 in Switch.

    Raises:
      ValueError: the weight is negative or not finite.
    """

    def __init__(self, *, weight: float = 0.01) -> None:
        require_not_negative("weight", weight)
        self.weight = weight

    def __call__(self, routing: Routing) -> None:
        load = routing.load()
        chosen = load / load.sum()
        mean = routing.shares.flatten(0, -2).mean(dim=0)
        report_loss("moe/balance", self.weight * len(load) * (chosen * mean).sum())


class SequenceBalancingLoss:
    """`LoadBalancingLoss` of each sequence, averaged over sequences.

    DeepSeek-V3 combines a small one with loss-free balancing (2024, arXiv:2412.19437, equations 17
    to 20).

    Args:
      weight: of the loss, for each layer.

    Raises:
      ValueError: the weight is negative or not finite.
    """

    def __init__(self, *, weight: float = 0.0001) -> None:
        require_not_negative("weight", weight)
        self.weight = weight

    def __call__(self, routing: Routing) -> None:
        """Report the loss of a routing [..., seq, experts]."""
        num_experts = routing.scores.shape[-1]
        chosen = routing.experts.flatten(-2)
        counts = torch.zeros_like(routing.scores[..., 0, :])
        counts = counts.scatter_add(-1, chosen, torch.ones_like(chosen, dtype=counts.dtype))
        products = counts / chosen.shape[-1] * routing.shares.mean(dim=-2)
        even = num_experts * products.sum(dim=-1)
        report_loss("moe/sequence_balance", self.weight * even.mean())


class RouterZLoss:
    """`weight * mean(logsumexp(logits)^2)`: keeps logits small, where float32 is precise.

    (Zoph et al., 2022, ST-MoE, arXiv:2202.08906, equation 5.)

    Args:
      weight: of the loss, for each layer; 0.001 in ST-MoE.

    Raises:
      ValueError: the weight is negative or not finite.
    """

    def __init__(self, *, weight: float = 0.001) -> None:
        require_not_negative("weight", weight)
        self.weight = weight

    def __call__(self, routing: Routing) -> None:
        squares: Float[Tensor, "*batch"] = routing.logits.logsumexp(dim=-1).square()
        report_loss("moe/z", self.weight * squares.mean())


class MoE(nn.Module):
    """Mixture of experts: each token goes through a few experts, chosen by a router.

    In training it reports the load of the experts over all tokens of an optimizer step, relative to
    the mean: `moe/load` of each, `moe/load_max` of the busiest.

    Args:
      num_experts: number of experts; equal to those of router and experts.
      router: chooses the experts of each token.
      experts: the experts.
      shared: an MLP for all tokens, whose output is added (DeepSeek-MoE, Dai et al., 2024,
        arXiv:2401.06066).
      dispatch: sends tokens to their experts, and combines the outputs.
      balancing: losses for an even load in training.

    Raises:
      ValueError: router or experts have another number of experts.
    """

    def __init__(
        self,
        *,
        num_experts: int,
        router: Router,
        experts: Experts,
        shared: nn.Module | None = None,
        dispatch: Dispatch = dropless,
        balancing: Sequence[Balancing] = (),
    ) -> None:
        super().__init__()
        if not router.num_experts == experts.num_experts == num_experts:
            raise ValueError(
                f"{num_experts=} must equal the router's {router.num_experts} and the experts' "
                f"{experts.num_experts}; let all three inherit one value."
            )
        self.num_experts = num_experts
        self.router = router
        self.experts = experts
        self.shared = shared
        self.dispatch = dispatch
        self.balancing = tuple(balancing)

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        routing = self.router(x)
        if self.training:
            report_tally(self, routing.load())
            for part in self.balancing:
                part(routing)
        chosen, weights = routing.experts.flatten(0, -2), routing.weights.flatten(0, -2)
        out = self.dispatch(x.flatten(0, -2), chosen, weights, self.experts).view_as(x)
        return out if self.shared is None else out + self.shared(x)

    def settle(self, tally: Int64[Tensor, " experts"]) -> dict[str, Tensor]:
        """Update the selection bias by the load of an optimizer step; return load metrics."""
        if self.router.selection_bias is not None:
            self.router.selection_bias.move(tally)
        load = (tally / tally.double().mean()).float()
        return {"moe/load_max": load.max(), "moe/load": load}

    def own_flops_per_token(self, seq_len: int) -> int:
        """Return the operations of the experts of a token, and of the sum of their outputs."""
        joined = 2 * self.router.weight.shape[1]
        return self.router.top_k * (self.experts.flops_per_row() + joined)

    def own_idle_parameters(self) -> int:
        """Return the number of parameters of the experts that a token does not use."""
        return (self.num_experts - self.router.top_k) * self.experts.parameters_per_expert()


class GatedShared(nn.Module):
    """`sigmoid(gate(x)) * mlp(x)`, as in Qwen2-MoE (Yang et al., 2024, arXiv:2407.10671).

    Args:
      hidden_dim: width of the residual stream.
      mlp: the gated MLP.
      init: of the gate, one vector.
    """

    def __init__(self, *, hidden_dim: int, mlp: nn.Module, init: Init = GPT2_NORMAL) -> None:
        super().__init__()
        self.gate = Linear(hidden_dim, 1, init=init)
        self.mlp = mlp

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        return torch.sigmoid(self.gate(x)) * self.mlp(x)

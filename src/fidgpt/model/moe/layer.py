"""The mixture-of-experts layer, and a shared expert with a gate."""

from collections.abc import Callable, Sequence
from typing import ClassVar, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fidgpt.model.blocks import FeedForward
from fidgpt.model.context import TokenMasks
from fidgpt.model.fields import ExtensibleModule
from fidgpt.model.init import GPT2_NORMAL, Init
from fidgpt.model.linear import Linear
from fidgpt.model.moe.balancing import Balancing
from fidgpt.model.moe.dispatch import Dispatch, RealTokens, dropless
from fidgpt.model.moe.experts import Experts
from fidgpt.model.moe.routers import Router, Routing
from fidgpt.model.reports import RealCount, report_tally

__all__ = ["GatedShared", "MoE"]


class MoE(ExtensibleModule):
    """Mixture of experts: each token is processed by a few experts that a router selects.

    In training it reports the load of the experts relative to the mean, over all tokens of an
    optimizer step but padding: `moe/load` of each expert, and `moe/load_max` of the busiest one. If
    processes share the experts, `moe/rank_load` and `moe/rank_load_max` are the loads of the
    processes.

    Args:
      num_experts: number of experts; must equal the numbers of `router` and `experts`.
      router: selects the experts of each token.
      experts: the experts.
      shared: a shared expert, an MLP that processes all tokens (DeepSeek-MoE, Dai et al., 2024,
        arXiv:2401.06066).
      dispatch: sends tokens to their experts and combines the outputs.
      balancing: auxiliary losses in training; None keeps the place of one.

    Attributes:
      num_ranks: number of processes that share the experts.
      beside: lets the shared expert compute while processes send tokens to each other, and returns
        what gives its output; None if they do not.

    Raises:
      ValueError: router or experts have a different number of experts.
    """

    ROLE: ClassVar[str] = "FeedForward"
    takes_context: ClassVar[bool] = True

    def __init__(
        self,
        *,
        num_experts: int,
        router: Router,
        experts: Experts,
        shared: FeedForward | None = None,
        dispatch: Dispatch = dropless,
        balancing: Sequence[Balancing | None] = (),
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
        self.balancing = tuple(loss for loss in balancing if loss is not None)
        self.num_ranks = 1
        self.beside: Callable[[FeedForward, Tensor], Callable[[Tensor], Tensor]] | None = None

    @property
    def counts_batch(self) -> bool:
        """Whether a loss needs counts over the whole batch before the first backward pass."""
        return any(getattr(loss, "counts_batch", False) for loss in self.balancing)

    def forward(
        self, x: Float[Tensor, "*batch hidden"], *, ctx: TokenMasks | None = None
    ) -> Float[Tensor, "*batch hidden"]:
        """Return a vector for each token.

        Args:
          x: a vector for each token.
          ctx: marks the tokens that are padding; None if there are none.
        """
        routing: Routing = self.router(x)
        if ctx is not None:
            real = RealTokens(RealCount(ctx.num_columns), ctx.real, ctx.real_of_rows)
            routing = routing._replace(real=real)
        if self.training:
            report_tally(self, routing.load())
            for part in self.balancing:
                part(routing)
        chosen, weights = routing.experts.flatten(0, -2), routing.weights.flatten(0, -2)
        shared, rows = self.shared, x.flatten(0, -2)
        if shared is not None and self.beside is not None:
            shared = self.beside(cast(nn.Module, shared), x)
        out = self.dispatch(rows, chosen, weights, self.experts, routing.real).view_as(x)
        return out if shared is None else out + shared(x)

    def settle(self, tally: Int64[Tensor, " experts"]) -> dict[str, Tensor]:
        """Update the selection bias from the load of an optimizer step, and return load metrics."""
        if self.router.selection_bias is not None:
            self.router.selection_bias.move(tally)
        load = (tally / tally.double().mean()).float()
        loads = {"moe/load_max": load.max(), "moe/load": load}
        if self.num_ranks > 1:
            of_ranks = load.view(self.num_ranks, -1).mean(dim=1)
            loads |= {"moe/rank_load_max": of_ranks.max(), "moe/rank_load": of_ranks}
        return loads

    def own_idle_parameters(self) -> int:
        """Return the number of parameters of the experts that are inactive for a token."""
        return (self.num_experts - self.router.top_k) * self.experts.parameters_per_expert()


class GatedShared(nn.Module):
    """`sigmoid(gate(x)) * mlp(x)`, as in Qwen2-MoE (Yang et al., 2024, arXiv:2407.10671).

    Args:
      hidden_dim: width of the residual stream.
      mlp: the gated MLP.
      init: initializer of the gate, a vector.
    """

    ROLE: ClassVar[str] = "FeedForward"

    def __init__(self, *, hidden_dim: int, mlp: FeedForward, init: Init = GPT2_NORMAL) -> None:
        super().__init__()
        self.gate = Linear(hidden_dim, 1, init=init)
        self.mlp = mlp

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        return torch.sigmoid(self.gate(x)) * self.mlp(x)

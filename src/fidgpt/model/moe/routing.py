"""Routers."""

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fidgpt.model.init import GPT2_NORMAL, ZEROS, Init, with_init
from fidgpt.ranges import require_factor, require_not_negative

__all__ = ["GroupLimit", "Router", "Routing", "SelectionBias", "SigmoidRouter", "SoftmaxRouter"]


class Routing(NamedTuple):
    """The experts of each token.

    Attributes:
      experts: the chosen experts of each token, [..., top_k].
      weights: factors of their outputs, [..., top_k], float32.
      scores: scores of all experts, above zero, [..., num_experts], float32.
      logits: the scores before softmax or sigmoid, [..., num_experts], float32.
    """

    experts: Int64[Tensor, "*batch top_k"]
    weights: Float[Tensor, "*batch top_k"]
    scores: Float[Tensor, "*batch experts"]
    logits: Float[Tensor, "*batch experts"]

    @property
    def shares(self) -> Float[Tensor, "*batch experts"]:
        """The scores of each token, normalized to sum to 1."""
        return self.scores / self.scores.sum(dim=-1, keepdim=True)

    def load(self) -> Int64[Tensor, " experts"]:
        """Return how often each expert was chosen."""
        chosen = self.experts.flatten()
        return chosen.new_zeros(self.scores.shape[-1]).scatter_add_(
            0, chosen, torch.ones_like(chosen)
        )


class GroupLimit:
    """Group-limited routing: the experts of a token come from a few groups.

    The score of a group is the sum of its best experts' scores: of one in DeepSeek-V2 (2024,
    arXiv:2405.04434, section 2.2.2), of two in DeepSeek-V3 (2024, arXiv:2412.19437, section 2.1.2).

    Args:
      num_groups: number of groups of consecutive experts.
      top_groups: number of groups for each token.
      best: number of experts in the score of a group.

    Raises:
      ValueError: a count is below one, or top_groups exceeds num_groups.
    """

    def __init__(self, *, num_groups: int, top_groups: int, best: int = 1) -> None:
        if not 1 <= top_groups <= num_groups or best < 1:
            raise ValueError(
                f"{top_groups=} must be from 1 to {num_groups=}, and {best=} 1 or more."
            )
        self.num_groups = num_groups
        self.top_groups = top_groups
        self.best = best

    def check(self, *, num_experts: int, top_k: int) -> None:
        """Raise ValueError if a router with these settings cannot have this limit."""
        if num_experts % self.num_groups:
            raise ValueError(
                f"{num_experts=} cannot be split evenly into num_groups={self.num_groups}: use a "
                "num_groups that divides it."
            )
        size = num_experts // self.num_groups
        if size < self.best or size * self.top_groups < top_k:
            raise ValueError(
                f"top_groups={self.top_groups} of {size} experts each hold fewer than {top_k=}, or "
                f"than best={self.best}: use more groups, or fewer experts per token."
            )

    def __call__(
        self, preferences: Float[Tensor, "*batch experts"]
    ) -> Float[Tensor, "*batch experts"]:
        """Return the scores, with minus infinity outside of the chosen groups."""
        groups = preferences.unflatten(-1, (self.num_groups, -1))
        group_scores = groups.topk(self.best, dim=-1).values.sum(dim=-1)
        chosen = group_scores.topk(self.top_groups, dim=-1).indices
        barred = torch.ones_like(group_scores, dtype=torch.bool).scatter(-1, chosen, False)
        return groups.masked_fill(barred.unsqueeze(-1), float("-inf")).flatten(-2)


class SelectionBias(nn.Module):
    """Loss-free balancing: a bias per expert that is added to scores for the choice alone.

    After each optimizer step, the bias moves by `rate`: up if the expert had less than the mean
    load, down if it had more (Wang et al., 2024, arXiv:2408.15664; DeepSeek-V3, 2024,
    arXiv:2412.19437).

    Args:
      num_experts: experts to choose from.
      rate: change of a bias per step.

    Raises:
      ValueError: the rate is negative or not finite.
    """

    keeps_float32: ClassVar[bool] = True  # steps of 0.001 would be lost in bfloat16

    bias: Float[Tensor, " experts"]

    def __init__(self, *, num_experts: int, rate: float = 0.001) -> None:
        super().__init__()
        require_not_negative("rate", rate)
        self.rate = rate
        self.register_buffer("bias", torch.zeros(num_experts))

    def reset_parameters(self) -> None:
        """Set the bias to zero."""
        self.bias.zero_()

    def forward(self, scores: Float[Tensor, "*batch experts"]) -> Float[Tensor, "*batch experts"]:
        return scores + self.bias

    @torch.no_grad()
    def move(self, load: Int64[Tensor, " experts"]) -> None:
        """Update the bias by the load of an optimizer step."""
        lack = load.double().mean() - load
        self.bias += self.rate * lack.sign().to(self.bias.dtype)


class Router(nn.Module):
    """Scores all experts for each token, and chooses the best, in float32 with float32 weights.

    Subclasses define how logits become scores.

    Args:
      hidden_dim: width of the residual stream.
      num_experts: experts to choose from.
      top_k: experts per token.
      groups: limits the choice to a few groups of experts.
      selection_bias: is added to the scores for the choice alone.
      normalize: makes the weights of a token's experts sum to 1.
      scale: of the weights.
      bias: adds a bias to the logits.
      init: of the weight.

    Raises:
      ValueError: top_k is not from 1 to num_experts, or groups do not fit.
    """

    keeps_float32: ClassVar[bool] = True  # rounded logits change the choice

    def __init__(
        self,
        *,
        hidden_dim: int,
        num_experts: int,
        top_k: int,
        groups: GroupLimit | None = None,
        selection_bias: SelectionBias | None = None,
        normalize: bool = True,
        scale: float = 1.0,
        bias: bool = False,
        init: Init = GPT2_NORMAL,
    ) -> None:
        super().__init__()
        require_factor("scale", scale)
        if not 1 <= top_k <= num_experts:
            raise ValueError(
                f"{top_k=} of {num_experts=} cannot be chosen: use at least 1 and at most "
                f"{num_experts}."
            )
        if groups is not None:
            groups.check(num_experts=num_experts, top_k=top_k)
        self.num_experts = num_experts
        self.top_k = top_k
        self.groups = groups
        self.selection_bias = selection_bias
        self.normalize = normalize
        self.scale = scale
        self.weight = with_init(nn.Parameter(torch.empty(num_experts, hidden_dim)), init)
        self.bias = with_init(nn.Parameter(torch.empty(num_experts)), ZEROS) if bias else None

    def scored(self, logits: Float[Tensor, "*batch experts"]) -> Float[Tensor, "*batch experts"]:
        """Return the scores, which are above zero."""
        raise NotImplementedError

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Routing:
        wide = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        logits = F.linear(x.to(wide), self.weight.to(wide), bias)
        scores = self.scored(logits)
        experts = self._preferences(scores.detach()).topk(self.top_k, dim=-1).indices
        weights = scores.gather(-1, experts)
        if self.normalize:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return Routing(experts, weights * self.scale, scores, logits)

    def own_flops_per_token(self, seq_len: int) -> int:
        """Return the operations of the logits."""
        return 2 * self.weight.numel()

    def _preferences(
        self, scores: Float[Tensor, "*batch experts"]
    ) -> Float[Tensor, "*batch experts"]:
        biased = scores if self.selection_bias is None else self.selection_bias(scores)
        return biased if self.groups is None else self.groups(biased)


class SoftmaxRouter(Router):
    """Softmax over all experts, as in Mixtral, Qwen and DeepSeek-V2.

    With `normalize`, the weights are a softmax over the logits of the chosen experts (Jiang et al.,
    2024, arXiv:2401.04088, section 2.1), without it a softmax over all (Shazeer et al., 2017,
    arXiv:1701.06538; Fedus et al., 2021, arXiv:2101.03961, for top_k=1).
    """

    def scored(self, logits: Float[Tensor, "*batch experts"]) -> Float[Tensor, "*batch experts"]:
        return logits.softmax(dim=-1)


class SigmoidRouter(Router):
    """A sigmoid per expert (DeepSeek-V3, 2024, arXiv:2412.19437)."""

    def scored(self, logits: Float[Tensor, "*batch experts"]) -> Float[Tensor, "*batch experts"]:
        return logits.sigmoid()

"""Routers, which choose the experts of each token."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fidgpt.model.fields import ExtensibleModule
from fidgpt.model.init import GPT2_NORMAL, ZEROS, Init, with_init
from fidgpt.model.moe.dispatch import RealTokens
from fidgpt.ranges import require_factor, require_not_negative, require_size

__all__ = [
    "GroupLimit",
    "LogitBiasRouter",
    "Router",
    "Routing",
    "SelectionBias",
    "SigmoidRouter",
    "SoftmaxRouter",
    "SparseMixerRouter",
]

Scores = Float[Tensor, "*batch experts"]


class Routing(NamedTuple):
    """The experts of each token.

    Attributes:
      experts: chosen experts of each token, [..., top_k].
      weights: weights of their outputs, [..., top_k], float32.
      scores: positive scores of all experts, [..., num_experts], float32.
      logits: scores before softmax or sigmoid, [..., num_experts], float32.
      real: which tokens are no padding, over which loads and means are; None if all are.
    """

    experts: Int64[Tensor, "*batch top_k"]
    weights: Float[Tensor, "*batch top_k"]
    scores: Scores
    logits: Scores
    real: RealTokens | None = None

    @property
    def shares(self) -> Scores:
        """The scores of each token, normalized to sum to 1."""
        return self.scores / self.scores.sum(dim=-1, keepdim=True)

    @property
    def num_tokens(self) -> int:
        """The number of tokens."""
        return math.prod(self.scores.shape[:-1])

    @property
    def real_tokens(self) -> RealTokens:
        """The tokens over which loads and means are."""
        return RealTokens(self.num_tokens) if self.real is None else self.real

    def mean(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "..."]:
        """Return the mean of numbers or vectors of each token, leaving out padding."""
        return self.real_tokens.mean(x.flatten(0, self.scores.dim() - 2))

    def choices(self) -> Int64[Tensor, "*batch top_k"]:
        """Return how often each choice counts: once, or not at all if it is padding."""
        mask, ones = self.real_tokens.mask, torch.ones_like(self.experts)
        return ones if mask is None else ones * mask.unsqueeze(-1)

    def load(self) -> Int64[Tensor, " experts"]:
        """Return the number of times each expert was chosen."""
        chosen = self.experts.flatten()
        return chosen.new_zeros(self.scores.shape[-1]).scatter_add_(
            0, chosen, self.choices().flatten()
        )


@dataclass(eq=False, kw_only=True)
class GroupLimit:
    """Group-limited routing: the experts of a token come from a few groups.

    The score of a group is the sum of the scores of its best experts: one in DeepSeek-V2 (2024,
    arXiv:2405.04434, section 2.2.2), two in DeepSeek-V3 (2024, arXiv:2412.19437, section 2.1.2).

    Args:
      num_groups: number of groups of consecutive experts.
      top_groups: number of groups per token.
      best: number of experts whose scores are summed.

    Raises:
      ValueError: a count is below 1, or top_groups exceeds num_groups.
    """

    num_groups: int
    top_groups: int
    best: int = 1

    def __post_init__(self) -> None:
        require_size(best=self.best)
        if not 1 <= self.top_groups <= self.num_groups:
            raise ValueError(
                f"top_groups={self.top_groups} must be from 1 to num_groups={self.num_groups}."
            )

    def check(self, *, num_experts: int, top_k: int) -> None:
        """Raise ValueError if the limit does not fit a router with these settings."""
        if num_experts % self.num_groups:
            raise ValueError(
                f"{num_experts=} must be a multiple of num_groups={self.num_groups}; use a "
                "num_groups that divides it."
            )
        size = num_experts // self.num_groups
        if size < self.best or size * self.top_groups < top_k:
            raise ValueError(
                f"top_groups={self.top_groups} groups of {size} experts have fewer than {top_k=} "
                f"together, or fewer than best={self.best} each; use more groups per token, or "
                "fewer experts per token."
            )

    def __call__(self, preferences: Scores) -> Scores:
        """Return the scores, with -inf outside of the chosen groups."""
        groups = preferences.unflatten(-1, (self.num_groups, -1))
        group_scores = groups.topk(self.best, dim=-1).values.sum(dim=-1)
        chosen = group_scores.topk(self.top_groups, dim=-1).indices
        barred = torch.ones_like(group_scores, dtype=torch.bool).scatter(-1, chosen, False)
        return groups.masked_fill(barred.unsqueeze(-1), float("-inf")).flatten(-2)


class SelectionBias(nn.Module):
    """Loss-free balancing: a bias per expert that is added to the scores only for selection.

    After each optimizer step, `rate` is added to the bias of experts with less than the mean load,
    and subtracted from the bias of experts with more (Wang et al., 2024, arXiv:2408.15664;
    DeepSeek-V3, 2024, arXiv:2412.19437).

    Args:
      num_experts: experts to choose from.
      rate: change of a bias per step.

    Raises:
      ValueError: the rate is negative or not finite.
    """

    keeps_float32: ClassVar[bool] = True  # steps of 0.001 are lost in bfloat16

    bias: Float[Tensor, " experts"]

    def __init__(self, *, num_experts: int, rate: float = 0.001) -> None:
        super().__init__()
        require_not_negative(rate=rate)
        self.rate = rate
        self.register_buffer("bias", torch.zeros(num_experts))

    def reset_parameters(self) -> None:
        """Set the bias to zero."""
        self.bias.zero_()

    def forward(self, scores: Scores) -> Scores:
        return scores + self.bias

    @torch.no_grad()
    def move(self, load: Int64[Tensor, " experts"]) -> None:
        """Update the bias from the load of an optimizer step."""
        lack = load.double().mean() - load
        self.bias += self.rate * lack.sign().to(self.bias.dtype)


class Router(ExtensibleModule):
    """Scores all experts for each token and selects the best ones, in float32.

    Subclasses map logits to scores.

    Args:
      hidden_dim: width of the residual stream.
      num_experts: experts to choose from.
      top_k: experts per token.
      groups: limits the choice to a few groups of experts.
      selection_bias: added to the scores only for selection.
      normalize: whether to normalize the weights of a token's experts to sum to 1.
      scale: factor of the weights.
      bias: adds a bias to the logits.
      init: of the weight.

    Raises:
      ValueError: top_k is not from 1 to num_experts, or groups do not fit.
    """

    keeps_float32: ClassVar[bool] = True  # rounding of logits would change the selection

    MATRICES: ClassVar[Sequence[str]] = ("weight",)
    ROLE: ClassVar[str] = "Router"

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
        require_factor(scale=scale)
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"{top_k=} must be from 1 to {num_experts=}.")
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

    def scored(self, logits: Scores) -> Scores:
        """Return the scores, which are positive."""
        raise NotImplementedError

    def preferred(self, logits: Scores, scores: Scores) -> Scores:
        """Return by what experts are chosen, to which the selection bias is added."""
        return scores

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Routing:
        wide = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        logits = F.linear(x.to(wide), self.weight.to(wide), bias)
        scores = self.scored(logits)
        preferences = self.preferred(logits, scores).detach()
        for change in (self.selection_bias, self.groups):
            preferences = preferences if change is None else change(preferences)
        experts = preferences.topk(self.top_k, dim=-1).indices
        weights = scores.gather(-1, experts)
        if self.normalize:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return Routing(experts, weights * self.scale, scores, logits)


class SoftmaxRouter(Router):
    """Softmax over all experts, as in Mixtral, Qwen and DeepSeek-V2.

    With `normalize`, the weights are a softmax over the logits of the chosen experts (Jiang et al.,
    2024, arXiv:2401.04088, section 2.1); without it, a softmax over all logits (Shazeer et al.,
    2017, arXiv:1701.06538; Fedus et al., 2021, arXiv:2101.03961, for top_k=1).
    """

    def scored(self, logits: Scores) -> Scores:
        return logits.softmax(dim=-1)


class SigmoidRouter(Router):
    """A sigmoid per expert, as in DeepSeek-V3 (2024, arXiv:2412.19437)."""

    def scored(self, logits: Scores) -> Scores:
        return logits.sigmoid()


class SparseMixerRouter(SoftmaxRouter):
    """The router of Phi-3.5-MoE (Liu et al., 2023, SparseMixer, arXiv:2310.00811), without noise.

    The weight of the best expert is its share of a softmax over those whose logit is close to the
    best one, the weight of the second its share without the first one, and so on. In training too
    the best ones are chosen; SparseMixer draws them at random there.

    It takes the arguments of `Router` too.

    Args:
      tolerance: largest distance from the best logit, relative to the larger of both.
      arguments: of `Router`.
    """

    def __init__(self, *, tolerance: float = 0.02, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.tolerance = tolerance

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Routing:
        routing = super().forward(x)
        logits = left = routing.logits
        weights: list[Tensor] = []
        for choice in routing.experts.split(1, dim=-1):
            best = left.detach().gather(-1, choice)
            distance = (best - logits.detach()) / logits.detach().abs().clamp(min=best)
            shares = left.masked_fill(distance > self.tolerance, float("-inf")).softmax(dim=-1)
            weights.append(shares.gather(-1, choice))
            left = left.scatter(-1, choice, float("-inf"))
        return routing._replace(weights=torch.cat(weights, dim=-1))


class LogitBiasRouter(SigmoidRouter):
    """A sigmoid router whose selection bias is added to logits, not to scores (Kolibri 1)."""

    def preferred(self, logits: Scores, scores: Scores) -> Scores:
        """Return the logits."""
        return logits

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
    """Which experts each token goes to.

    Attributes:
      experts: the chosen experts of each token, [..., top_k].
      weights: what their outputs are multiplied with, [..., top_k], float32.
      scores: how well each expert suits the token, above zero, [..., num_experts], float32.
      logits: what the scores were computed from, [..., num_experts], float32.
    """

    experts: Int64[Tensor, "*batch top_k"]
    weights: Float[Tensor, "*batch top_k"]
    scores: Float[Tensor, "*batch experts"]
    logits: Float[Tensor, "*batch experts"]

    @property
    def shares(self) -> Float[Tensor, "*batch experts"]:
        """The scores of each token, made to sum to 1."""
        return self.scores / self.scores.sum(dim=-1, keepdim=True)

    def load(self) -> Int64[Tensor, " experts"]:
        """How often each expert was chosen."""
        chosen = self.experts.flatten()
        return chosen.new_zeros(self.scores.shape[-1]).scatter_add_(
            0, chosen, torch.ones_like(chosen)
        )


class GroupLimit:
    """A token's experts come from a few groups of neighbours, such as those of one machine.

    A group is as good as its best experts together: the best one in DeepSeek-V2 (2024,
    arXiv:2405.04434, section 2.2.2), the best two in DeepSeek-V3 (2024, arXiv:2412.19437, section
    2.1.2).

    Args:
      num_groups: groups that the experts are dealt to, in order.
      top_groups: groups that a token's experts come from.
      best: how many of its experts a group is judged by.

    Raises:
      ValueError: a count is below one, or there are more chosen groups than groups.
    """

    def __init__(self, *, num_groups: int, top_groups: int, best: int = 1) -> None:
        if not 1 <= top_groups <= num_groups or best < 1:
            raise ValueError(
                f"{top_groups=} of {num_groups=}, judged by {best=}: choose between one group and "
                "all of them, by one expert or more."
            )
        self.num_groups = num_groups
        self.top_groups = top_groups
        self.best = best

    def check(self, *, num_experts: int, top_k: int) -> None:
        """Raises ValueError where the experts cannot be dealt so, or the chosen groups are small.

        The router that holds the limit asks.
        """
        if num_experts % self.num_groups:
            raise ValueError(
                f"{num_experts=} cannot be dealt evenly to num_groups={self.num_groups}: use a "
                "num_groups that divides it."
            )
        size = num_experts // self.num_groups
        if size < self.best or size * self.top_groups < top_k:
            raise ValueError(
                f"top_groups={self.top_groups} of {size} experts each hold fewer than {top_k=}, or "
                f"than best={self.best}: choose more groups, or fewer experts a token."
            )

    def __call__(
        self, preferences: Float[Tensor, "*batch experts"]
    ) -> Float[Tensor, "*batch experts"]:
        """The same numbers, minus infinity where the group is not among the chosen ones."""
        groups = preferences.unflatten(-1, (self.num_groups, -1))
        merits = groups.topk(self.best, dim=-1).values.sum(dim=-1)
        chosen = merits.topk(self.top_groups, dim=-1).indices
        barred = torch.ones_like(merits, dtype=torch.bool).scatter(-1, chosen, False)
        return groups.masked_fill(barred.unsqueeze(-1), float("-inf")).flatten(-2)


class SelectionBias(nn.Module):
    """Balances experts without a loss: what is chosen too often is preferred less from then on.

    Each expert has a number that is added to its score when experts are chosen, and nowhere else.
    After each optimizer step it moves by `rate`, up where the expert had less than the mean load,
    down where it had more (Wang et al., 2024, arXiv:2408.15664; DeepSeek-V3, 2024,
    arXiv:2412.19437).

    Args:
      num_experts: experts to choose from.
      rate: how far a number moves in a step.
    """

    keeps_float32: ClassVar[bool] = True  # steps of 0.001 would be lost in bfloat16

    bias: Float[Tensor, " experts"]

    def __init__(self, *, num_experts: int, rate: float = 0.001) -> None:
        super().__init__()
        require_not_negative("rate", rate)
        self.rate = rate
        self.register_buffer("bias", torch.zeros(num_experts))

    def reset_parameters(self) -> None:
        """No expert is preferred."""
        self.bias.zero_()

    def forward(self, scores: Float[Tensor, "*batch experts"]) -> Float[Tensor, "*batch experts"]:
        return scores + self.bias

    @torch.no_grad()
    def move(self, load: Int64[Tensor, " experts"]) -> None:
        """One step against the load that a whole optimizer step had."""
        lack = load.double().mean() - load
        self.bias += self.rate * lack.sign().to(self.bias.dtype)


class Router(nn.Module):
    """Scores every expert for a token and chooses the best ones; in float32, weights included.

    Subclasses say how logits become scores.

    Args:
      hidden_dim: width of the residual stream.
      num_experts: experts to choose from.
      top_k: experts that a token goes to.
      groups: keeps the choice within a few groups of experts.
      selection_bias: balances the experts by what it adds to scores in the choice alone.
      normalize: makes the weights of a token's experts sum to 1.
      scale: what the weights are multiplied with in the end.
      bias: adds a bias to the logits.
      init: start of the weight.

    Raises:
      ValueError: there are fewer experts than a token goes to, or groups do not fit them.
    """

    keeps_float32: ClassVar[bool] = True  # a rounded logit sends a token elsewhere

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
        """How well each expert suits a token, above zero."""
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
        """The product that makes the logits."""
        return 2 * self.weight.numel()

    def _preferences(
        self, scores: Float[Tensor, "*batch experts"]
    ) -> Float[Tensor, "*batch experts"]:
        biased = scores if self.selection_bias is None else self.selection_bias(scores)
        return biased if self.groups is None else self.groups(biased)


class SoftmaxRouter(Router):
    """Scores that sum to 1 over all experts: Mixtral, Qwen, DeepSeek-V2.

    With `normalize` the weights are a softmax over the logits of the chosen experts alone (Jiang et
    al., 2024, arXiv:2401.04088, section 2.1), without it their share of all experts' (Shazeer et
    al., 2017, arXiv:1701.06538; Fedus et al., 2021, arXiv:2101.03961, for one expert a token).
    """

    def scored(self, logits: Float[Tensor, "*batch experts"]) -> Float[Tensor, "*batch experts"]:
        return logits.softmax(dim=-1)


class SigmoidRouter(Router):
    """Scores between 0 and 1 for each expert on its own (DeepSeek-V3, 2024, arXiv:2412.19437)."""

    def scored(self, logits: Float[Tensor, "*batch experts"]) -> Float[Tensor, "*batch experts"]:
        return logits.sigmoid()

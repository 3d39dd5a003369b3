"""Routers: which experts a token goes to, and how much each of them counts."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.init import GPT2_NORMAL, ZEROS, Init, carry
from fidgpt.model.moe.routing import GroupLimit, Routing, SelectionBias
from fidgpt.ranges import require_factor


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
        self.check_arguments(num_experts=num_experts, top_k=top_k, scale=scale)
        if groups is not None:
            groups.check(num_experts=num_experts, top_k=top_k)
        self.num_experts = num_experts
        self.top_k = top_k
        self.groups = groups
        self.selection_bias = selection_bias
        self.normalize = normalize
        self.scale = scale
        self.weight = carry(nn.Parameter(torch.empty(num_experts, hidden_dim)), init)
        self.bias = carry(nn.Parameter(torch.empty(num_experts)), ZEROS) if bias else None

    @staticmethod
    def check_arguments(*, num_experts: int, top_k: int, scale: float) -> None:
        """Raises ValueError unless a token can go to top_k experts, and the scale is not 0."""
        require_factor("scale", scale)
        if not 1 <= top_k <= num_experts:
            raise ValueError(
                f"{top_k=} of {num_experts=} cannot be chosen: use at least 1 and at most "
                f"{num_experts}."
            )

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

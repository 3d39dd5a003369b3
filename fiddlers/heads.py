"""Multi-token prediction."""

import fiddle as fdl

from fidgpt.graph import swap_all
from fidgpt.model import Transformer
from fidgpt.model.prediction import MultiTokenTransformer, TokenPrediction
from fidgpt.ranges import require_size
from fidgpt.train import CrossEntropy, Trainer

__all__ = ["use_mtp"]


def use_mtp(cfg: fdl.Config[Trainer], num_tokens: int = 1, weight: float = 0.3) -> None:
    """Also train to predict `num_tokens` tokens beyond the next one (DeepSeek-V3).

    Args:
      cfg: the graph to change.
      num_tokens: number of additional predictions, each with its own block.
      weight: weight of the mean of their losses.
    """
    require_size(num_tokens=num_tokens)
    for model in swap_all(cfg, Transformer, by=MultiTokenTransformer):
        model.prediction = fdl.Partial(TokenPrediction, init=model.embedding.weight.init)
        model.num_predictions = num_tokens
        model.loss = fdl.Config(CrossEntropy)
        model.weight = weight

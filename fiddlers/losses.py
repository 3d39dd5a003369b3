"""Loss functions and auxiliary losses."""

from typing import Any

import fiddle as fdl

from fidgpt.graph import ConfigError, swapped
from fidgpt.tags import LabelSmoothing
from fidgpt.train import CrossEntropy, FusedCrossEntropy, SmoothedLabels, Trainer, ZLoss

__all__ = ["use_fused_loss", "use_label_smoothing", "use_z_loss"]


def use_z_loss(cfg: fdl.Config[Trainer], weight: float = 1e-4) -> None:
    """Add a loss that keeps the softmax normalizer near 1 (PaLM)."""
    _add_term(cfg, "z_loss", fdl.Config(ZLoss, weight=weight))


def use_label_smoothing(cfg: fdl.Config[Trainer], amount: float = 0.1) -> None:
    """Spread a fraction of every target evenly over all tokens (Szegedy et al., 2016)."""
    term = fdl.Config(SmoothedLabels, amount=LabelSmoothing.new(amount))
    _add_term(cfg, "label_smoothing", term)


def use_fused_loss(cfg: fdl.Config[Trainer]) -> None:
    """Compute unembedding and cross-entropy by torch's fused operation where possible."""
    _require_cross_entropy(cfg)
    cfg.loss = swapped(cfg.loss, FusedCrossEntropy)


def _add_term(cfg: fdl.Config[Trainer], name: str, term: fdl.Config[Any]) -> None:
    _require_cross_entropy(cfg)
    terms = {**(cfg.loss.terms or {}), name: term}
    cfg.loss.terms = dict(sorted(terms.items()))


def _require_cross_entropy(cfg: fdl.Config[Trainer]) -> None:
    kind = fdl.get_callable(cfg.loss)
    if not (isinstance(kind, type) and issubclass(kind, CrossEntropy)):
        raise ConfigError(
            f"the loss is {kind.__name__}, but terms and fusion are of a CrossEntropy: put "
            "use:loss=CrossEntropy before this."
        )

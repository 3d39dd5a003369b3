"""Training on preferences."""

from typing import Any

import fiddle as fdl

from fidgpt.data import HeldOut, HubDataset, Mixture, Preferences, TextFiles, pairs
from fidgpt.fiddlers.conversations import write_chats
from fidgpt.fiddlers.texts import own_corpus
from fidgpt.graph import ConfigError, find
from fidgpt.tags import SeqLen
from fidgpt.train import (
    DPO,
    IPO,
    ORPO,
    PreferenceStep,
    Trainer,
)

__all__ = ["use_hub_preferences", "use_preferences"]

_LOSSES: dict[str, Any] = {"dpo": DPO, "ipo": IPO, "orpo": ORPO}


def use_preferences(
    cfg: fdl.Config[Trainer],
    path: str,
    beta: float = 0.1,
    loss: str = "dpo",
    too_long: str = "shorten",
    template: str | None = None,
) -> None:
    """Train on pairs of a chosen and a rejected answer in files.

    A row of a batch is a pair. The reference is what the run begins with, or the model without its
    adapters. Validation on held-out text is removed: it is not about pairs. `use_validation` behind
    this adds other text.

    Args:
      cfg: the graph to change.
      path: JSON lines, JSON or Parquet, or a folder of them, with `chosen` and `rejected`.
      beta: strength of the tie to the reference; for ORPO, the weight beside the likelihood.
      loss: `dpo`, `ipo` or `orpo`.
      too_long: what becomes of pairs longer than a sequence: `shorten`, `drop` or `refuse`.
      template: as in `use_conversations`.
    """
    _use(cfg, fdl.Config(TextFiles, path), beta, loss, too_long, template)


def use_hub_preferences(
    cfg: fdl.Config[Trainer],
    path: str,
    name: str | None = None,
    split: str = "train",
    beta: float = 0.1,
    loss: str = "dpo",
    too_long: str = "shorten",
    template: str | None = None,
) -> None:
    """Train on pairs of a dataset of the Hugging Face hub, as `use_preferences` does.

    Args:
      cfg: the graph to change.
      path: the dataset, such as HuggingFaceH4/ultrafeedback_binarized.
      name: configuration of the dataset, if it has several.
      split: split of the dataset.
      beta: as in `use_preferences`.
      loss: as in `use_preferences`.
      too_long: as in `use_preferences`.
      template: as in `use_conversations`.
    """
    source = fdl.Config(HubDataset, path, name=name, split=split)
    _use(cfg, source, beta, loss, too_long, template)


def _use(
    cfg: fdl.Config[Trainer],
    source: Any,
    beta: float,
    loss: str,
    too_long: str,
    template: str | None,
) -> None:
    if loss not in _LOSSES:
        raise ConfigError(f"{loss=} is none of {', '.join(_LOSSES)}.")
    if fdl.get_callable(cfg.data) is Mixture:
        raise ConfigError("preferences are not mixed with text: leave out what makes the mixture.")
    write_chats(cfg, template)
    own = own_corpus(cfg)
    source.rows = fdl.Config(Preferences, max_tokens=SeqLen.new(), too_long=too_long)
    own.source = source
    own.validation_fraction = 0.0
    cfg.evaluators = {key: part for key, part in cfg.evaluators.items() if not find(part, HeldOut)}
    cfg.data.packing = fdl.Partial(pairs)
    cfg.step = fdl.Config(
        PreferenceStep, preference=fdl.Config(_LOSSES[loss], beta=beta), model=cfg.model
    )
    if loss == "orpo":
        cfg.step.likelihood = 1.0

"""Low-rank adapters."""

import fiddle as fdl

from fidgpt.graph import parts
from fidgpt.graph.fiddle import parameter_names
from fidgpt.model import LoRALinear, StackedLoRA, is_adapter
from fidgpt.tags import Rank
from fidgpt.train import Trainer


def use_lora(cfg: fdl.Config[Trainer], rank: int = 8, alpha: float | None = None) -> None:
    """Train only low-rank adapters of attention, MLPs and experts.

    Each expert has adapters of its own; routers have none.

    Args:
      cfg: the graph to change.
      rank: rank of the adapters.
      alpha: scale of the adapters times `rank`; defaults to `rank`.
    """
    for node in parts(cfg.model):
        for name, maker in (("linear", LoRALinear), ("adapter", StackedLoRA)):
            if name in parameter_names(node.value):
                setattr(node.value, name, fdl.Partial(maker, rank=Rank.new(rank), alpha=alpha))
    cfg.trainable = is_adapter

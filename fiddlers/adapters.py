"""Training a few parameters beside those that a model has."""

import fiddle as fdl

from fidgpt.graph import parts
from fidgpt.graph.fiddle import parameter_names
from fidgpt.model import LoRALinear, StackedLoRA, is_adapter
from fidgpt.tags import Rank
from fidgpt.train import Trainer


def use_lora(cfg: fdl.Config[Trainer], rank: int = 8, alpha: float | None = None) -> None:
    """Only low-rank adapters beside the matrices of attention, MLPs and experts are trained.

    Each expert has adapters of its own; routers stay as they are.

    Args:
      cfg: the graph to change.
      rank: width of an adapter.
      alpha: how strongly adapters speak, over the rank; the rank unless said.
    """
    for node in parts(cfg.model):
        for name, maker in (("linear", LoRALinear), ("adapter", StackedLoRA)):
            if name in parameter_names(node.value):
                setattr(node.value, name, fdl.Partial(maker, rank=Rank.new(rank), alpha=alpha))
    cfg.trainable = is_adapter

"""How tokens look at each other."""

import fiddle as fdl

from fidgpt.graph import find
from fidgpt.model import Attention
from fidgpt.tags import NumKVHeads
from fidgpt.train import Trainer


def use_gqa(cfg: fdl.Config[Trainer], num_kv_heads: int = 2) -> None:
    """Neighbouring query heads share a key and a value head, `num_kv_heads` of each in a layer."""
    for attention in find(cfg.model, Attention):
        attention.num_kv_heads = NumKVHeads.new(num_kv_heads)

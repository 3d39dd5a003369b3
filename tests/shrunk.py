"""Published configs made so small that they train here in no time, with all their parts."""

import fiddle as fdl

from fidgpt import configs
from fidgpt.fiddlers import smoke_test, use_bytes, use_float32
from fidgpt.graph import parts
from fidgpt.model import RoPE

SIZES = {
    "head_dim": 16,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_dim": 48,
    "window": 8,
    "kv_rank": 24,
    "query_rank": 20,
    "rope_head_dim": 8,
    "value_head_dim": 12,
    "num_experts": 4,
    "top_k": 2,
    "num_groups": 2,
    "top_groups": 1,
}


def shrunk(name: str) -> fdl.Config:
    """A named config of width 64 that reads bytes, two rounds of its pattern deep."""
    cfg = getattr(configs, name)()
    use_bytes(cfg)
    use_float32(cfg)
    smoke_test(cfg, num_steps=2)
    cfg.model.hidden_dim = 64
    cfg.model.num_layers = min(len(cfg.model.first_blocks) + len(cfg.model.blocks) + 1, 7)
    for part in (node.value for node in parts(cfg.model)):
        # A RoPE with a size of its own rotates the share of a latent attention's head.
        sizes = {"head_dim": 8} if fdl.get_callable(part) is RoPE else SIZES
        for key in sizes.keys() & part.__arguments__.keys():
            if isinstance(getattr(part, key), int):
                setattr(part, key, sizes[key])
    return cfg

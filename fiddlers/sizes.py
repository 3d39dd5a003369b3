"""Sizes for any model: GPT-2's sizes, and one for a laptop."""

import fiddle as fdl

from fidgpt.fiddlers.runs import smoke_test, use_bytes
from fidgpt.graph import find, parts
from fidgpt.graph.fiddle import raw_arguments
from fidgpt.model import RoPE, Transformer
from fidgpt.train import Trainer

__all__ = ["make_large", "make_medium", "make_small", "make_tiny", "make_xl"]

_TINY = {
    "head_dim": 16,
    "num_heads": 4,
    "num_key_heads": 2,
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


def make_small(cfg: fdl.Config[Trainer]) -> None:
    """Set width and depth of GPT-2 small: 12 layers of 768."""
    _make(cfg, hidden_dim=768, num_layers=12)


def make_medium(cfg: fdl.Config[Trainer]) -> None:
    """Set width and depth of GPT-2 medium: 24 layers of 1,024."""
    _make(cfg, hidden_dim=1024, num_layers=24)


def make_large(cfg: fdl.Config[Trainer]) -> None:
    """Set width and depth of GPT-2 large: 36 layers of 1,280."""
    _make(cfg, hidden_dim=1280, num_layers=36)


def make_xl(cfg: fdl.Config[Trainer]) -> None:
    """Set width and depth of GPT-2 XL: 48 layers of 1,600."""
    _make(cfg, hidden_dim=1600, num_layers=48)


def make_tiny(cfg: fdl.Config[Trainer], num_steps: int = 20) -> None:
    """Make a model of this structure that trains in seconds on a laptop, on bytes.

    Its width is 64, and it has one round of its pattern of blocks, and the begin of the next. It
    comes last: a pattern that becomes longer behind it does not make the model deeper.

    Args:
      cfg: the graph to change.
      num_steps: of the run.
    """
    use_bytes(cfg)
    smoke_test(cfg, num_steps)
    cfg.micro_batch_size = None  # a recipe's is for rows of thousands of tokens
    cfg.optimizer.lr = 1e-3
    for model in find(cfg, Transformer):
        model.hidden_dim = 64
        model.num_layers = min(len(model.first_blocks) + len(model.blocks) + 1, 9)
        for node in parts(model):
            # A RoPE with a size of its own rotates the share of a latent attention's head.
            sizes = {"head_dim": 8} if fdl.get_callable(node.value) is RoPE else _TINY
            for name in sizes.keys() & raw_arguments(node.value).keys():
                if isinstance(getattr(node.value, name), int):
                    setattr(node.value, name, sizes[name])


def _make(cfg: fdl.Config[Trainer], *, hidden_dim: int, num_layers: int) -> None:
    cfg.model.hidden_dim = hidden_dim
    cfg.model.num_layers = num_layers

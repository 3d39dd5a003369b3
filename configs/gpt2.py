"""GPT-2 in its four sizes (Radford et al., 2019): learned positions, LayerNorm, GELU, biases, tied.

The text is that of `base`, and so is the tokenizer, trained on it up to GPT-2's 50,257 tokens.
"""

import fiddle as fdl

from fidgpt.configs.base import base
from fidgpt.fiddlers import (
    make_large,
    make_medium,
    make_small,
    make_xl,
    use_gelu,
    use_layer_norm,
    use_learned_positions,
)
from fidgpt.graph import find
from fidgpt.model import GELU, Attention
from fidgpt.train import Trainer


def gpt2_124m() -> fdl.Config[Trainer]:
    """The smallest, 124 million parameters."""
    return _gpt2(make_small)


def gpt2_355m() -> fdl.Config[Trainer]:
    """Medium, 355 million parameters."""
    return _gpt2(make_medium)


def gpt2_774m() -> fdl.Config[Trainer]:
    """Large, 774 million parameters."""
    return _gpt2(make_large)


def gpt2_1558m() -> fdl.Config[Trainer]:
    """XL, 1,558 million parameters."""
    return _gpt2(make_xl)


def _gpt2(make_size) -> fdl.Config[Trainer]:
    cfg = base()
    make_size(cfg)
    use_learned_positions(cfg)
    use_layer_norm(cfg)
    use_gelu(cfg)
    for part in find(cfg, Attention, GELU):
        part.bias = True
    cfg.vocab_size = 50_257
    cfg.seq_len = 1024
    cfg.optimizer.lr = 6e-4
    return cfg

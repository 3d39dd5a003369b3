"""The smallest run with all components, for tests."""

import fiddle as fdl

from fidgpt.configs.base import base
from fidgpt.data import ByteTokenizer, StandardLibrary
from fidgpt.fiddlers import smoke_test
from fidgpt.train import Trainer


def debug() -> fdl.Config[Trainer]:
    """Two layers of width 32 on bytes, for ten steps: two seconds."""
    cfg = base()
    smoke_test(cfg, num_steps=10)
    cfg.model.hidden_dim = 32
    cfg.model.num_layers = 2
    cfg.model.blocks[0].attention.head_dim = 16
    cfg.vocab_size = 257
    cfg.data.corpus.tokenizer = fdl.Config(ByteTokenizer)
    cfg.data.corpus.source = fdl.Config(StandardLibrary)
    return cfg

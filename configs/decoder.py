"""What most published decoders have in common: the sizes that each of them says."""

from collections.abc import Sequence
from typing import TypeVar

import fiddle as fdl

from fidgpt.configs.base import base
from fidgpt.fiddlers import untie_embeddings
from fidgpt.graph import clone_part, find
from fidgpt.model import RMSNorm
from fidgpt.tags import HeadDim, NumKVHeads, Window
from fidgpt.train import Trainer

T = TypeVar("T")


def decoder(
    *,
    hidden_dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    ffn_dim: int,
    vocab_size: int,
    seq_len: int,
    head_dim: int | None = None,
    windows: Sequence[int | None] = (None,),
    theta: float = 10_000.0,
    scaling: fdl.Config | None = None,
    eps: float = 1e-5,
    tied: bool = False,
    learning_rate: float = 3e-4,
) -> fdl.Config[Trainer]:
    """A decoder like Llama: RoPE, RMSNorm before each branch, SwiGLU, grouped queries, no biases.

    Args:
      hidden_dim: width of the residual stream.
      num_layers: depth.
      num_heads: query heads of a layer; they follow the width where they fill it.
      num_kv_heads: key and value heads of a layer.
      ffn_dim: width inside an MLP.
      vocab_size: rows of the token table.
      seq_len: tokens of a training sequence.
      head_dim: size of a head; hidden_dim / num_heads unless said.
      windows: how far attention looks back, a pattern that repeats over the depth; None: at all.
      theta: base of RoPE's wavelengths.
      scaling: how RoPE reaches beyond its training.
      eps: of every norm.
      tied: one table both reads and scores tokens.
      learning_rate: peak learning rate.
    """
    cfg = base()
    cfg.vocab_size, cfg.seq_len = vocab_size, seq_len
    cfg.optimizer.lr = learning_rate
    cfg.model.hidden_dim, cfg.model.num_layers = hidden_dim, num_layers
    head_dim = hidden_dim // num_heads if head_dim is None else head_dim
    attention = cfg.model.blocks[0].attention
    attention.head_dim = HeadDim.new(head_dim)
    attention.num_heads = None if num_heads * head_dim == hidden_dim else num_heads
    attention.num_kv_heads = NumKVHeads.new(num_kv_heads)
    attention.rope.theta, attention.rope.scaling = theta, scaling
    cfg.model.blocks[0].mlp.ffn_dim = ffn_dim
    for norm in find(cfg.model, RMSNorm):
        norm.eps = eps
    cfg.model.blocks = [_looking_back(cfg.model.blocks[0], window) for window in shortest(windows)]
    if not tied:
        untie_embeddings(cfg)
    return cfg


def shortest(pattern: Sequence[T]) -> Sequence[T]:
    """The shortest beginning of a pattern that gives all of it when it repeats."""
    return next(
        pattern[:n]
        for n in range(1, len(pattern) + 1)
        if all(one == pattern[i % n] for i, one in enumerate(pattern))
    )


def _looking_back(block: fdl.Partial, window: int | None) -> fdl.Partial:
    """The same block, with a window of its own."""
    block = clone_part(block)
    block.attention.window = None if window is None else Window.new(window)
    return block

"""The common parts of most published decoders."""

from collections.abc import Sequence

import fiddle as fdl

from fidgpt.configs.hub import SETTINGS, SILU, TENSORS, Family
from fidgpt.configs.small import base
from fidgpt.configs.windows import SLIDING, look_back
from fidgpt.fiddlers import untie_embeddings
from fidgpt.graph import find
from fidgpt.model import RMSNorm, rotary_dim_of
from fidgpt.tags import HeadDim, NumKVHeads
from fidgpt.train import Trainer


def decoder(
    *,
    hidden_dim: int,
    num_layers: int,
    num_heads: int,
    ffn_dim: int,
    vocab_size: int,
    seq_len: int,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    theta: float = 10_000.0,
    scaling: fdl.Config | None = None,
    eps: float = 1e-5,
    tied: bool = False,
    window: int | None = None,
    layer_types: Sequence[str] | None = None,
    attention_bias: bool = False,
    attention_out_bias: bool | None = None,
    mlp_bias: bool = False,
    rotary_share: float = 1.0,
) -> fdl.Config[Trainer]:
    """A decoder like Llama: RoPE, pre-norm RMSNorm, SwiGLU, grouped-query attention.

    Args:
      hidden_dim: width of the residual stream.
      num_layers: number of layers.
      num_heads: query heads per layer; left unset if they fill the width.
      ffn_dim: intermediate width of MLPs.
      vocab_size: rows of the embedding.
      seq_len: length of a training sequence, in tokens.
      num_kv_heads: key and value heads per layer; defaults to num_heads.
      head_dim: size of a head; defaults to hidden_dim / num_heads.
      theta: base of RoPE's wavelengths.
      scaling: RoPE scaling; None for none.
      eps: eps of all norms.
      tied: whether embedding and unembedding share a table.
      window: sliding-window size in tokens; None for full attention.
      layer_types: which layers use the window, a pattern that repeats over the depth; defaults to
        all of them.
      attention_bias: whether the projections of attention have biases.
      attention_out_bias: whether the output projection has one; defaults to attention_bias.
      mlp_bias: whether the projections of MLPs have biases.
      rotary_share: share of each head that RoPE rotates.
    """
    cfg = base()
    cfg.vocab_size, cfg.seq_len = vocab_size, seq_len
    cfg.optimizer.lr = 3e-4
    cfg.model.hidden_dim, cfg.model.num_layers = hidden_dim, num_layers
    head_dim = hidden_dim // num_heads if head_dim is None else head_dim
    attention = cfg.model.blocks[0].attention
    attention.head_dim = HeadDim.new(head_dim)
    attention.num_heads = None if num_heads * head_dim == hidden_dim else num_heads
    attention.num_kv_heads = NumKVHeads.new(num_heads if num_kv_heads is None else num_kv_heads)
    attention.rope.theta, attention.rope.scaling = theta, scaling
    if rotary_share != 1.0:
        attention.rope.rotary_dim = fdl.Config(
            rotary_dim_of, head_dim=HeadDim.new(), share=rotary_share
        )
    mlp = cfg.model.blocks[0].mlp
    mlp.ffn_dim = ffn_dim
    for part, has_bias in ((attention, attention_bias), (mlp, mlp_bias)):
        if has_bias:
            part.bias = True
    if attention_out_bias is not None:
        attention.out_bias = attention_out_bias
    for norm in find(cfg.model, RMSNorm):
        norm.eps = eps
    if not tied:
        untie_embeddings(cfg)
    look_back(cfg, window, (SLIDING,) if layer_types is None else layer_types)
    return cfg


# Makes a family near this decoder; see `Family.near`.
family = Family(
    model_type="decoder", config=decoder, settings=SETTINGS, tensors=TENSORS, fixed=SILU
).near

"""Command R (Cohere, 2024): parallel blocks of one norm, adjacent rotary pairs, scaled logits."""

from functools import partial

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import QK_NORMS, TENSORS, with_adjacent_pairs
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, PERIODS, SLIDING, periodic_layers, rotate_in_windows_only
from fidgpt.fiddlers import use_layer_norm, use_norm_per_head, use_parallel_block
from fidgpt.train import Trainer


@variant_of(decoder, tied=True, vocab_size=256_000, seq_len=8192)
def cohere(
    cfg: fdl.Config[Trainer], *, eps: float, logit_scale: float = 0.0625, qk_norm: bool = False
) -> None:
    """A decoder with LayerNorm without biases, one for both branches of a parallel block.

    With `qk_norm`, as in Command R+, queries and keys have a norm for each head.
    """
    use_layer_norm(cfg, eps=eps, bias=False)
    use_parallel_block(cfg)
    for block in cfg.model.blocks:
        block.mlp_norm = None
    cfg.model.unembedding.scale = logit_scale
    if qk_norm:
        use_norm_per_head(cfg, eps=eps)


HUB = family(
    "cohere",
    cohere,
    "attention_bias logit_scale qk_norm",
    settings={"eps": "layer_norm_eps"},
    tensors=with_adjacent_pairs({**TENSORS, **QK_NORMS}),
    defaults={"rope_theta": 500_000.0},
)


@variant_of(cohere, window=4096, layer_types=(*[SLIDING] * 3, FULL))
def cohere2(cfg: fdl.Config[Trainer], *, window: int | None) -> None:
    """Command R with a window and RoPE in three of four layers, and neither in the fourth."""
    rotate_in_windows_only(cfg, window)


COHERE2 = HUB.near(
    "cohere2",
    cohere2,
    "window layer_types",
    settings={"qk_norm": ...},
    defaults={"layer_types": periodic_layers, "rope_theta": ...},
    known=(
        *(*PERIODS, "use_parallel_block", "use_gated_activation", "rotary_pct"),
        *("use_embedding_sharing", "use_parallel_embedding", "use_qk_norm", "layer_switch"),
        *("order_of_interleaved_layers", "position_embedding_type"),
    ),
)


_command_r = partial(cohere, hidden_dim=8192, num_layers=40, num_heads=64, seq_len=131_072)


def command_r() -> fdl.Config[Trainer]:
    """35 billion parameters."""
    return _command_r(ffn_dim=22_528, theta=8e6)


def command_r_08_2024() -> fdl.Config[Trainer]:
    """32 billion parameters, with grouped-query attention."""
    return _command_r(num_kv_heads=8, ffn_dim=24_576, theta=4e6)

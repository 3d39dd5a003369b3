"""Gemma 2 (Gemma Team, 2024, arXiv:2408.00118): a window in every second layer, capped scores."""

from collections.abc import Sequence

import fiddle as fdl

from fidgpt.configs import gemma
from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import Family
from fidgpt.fiddlers import use_softcap
from fidgpt.train import Trainer


def gemma2(
    *,
    hidden_dim: int,
    num_layers: int,
    ffn_dim: int,
    num_heads: int = 8,
    num_kv_heads: int = 4,
    head_dim: int = 256,
    vocab_size: int = 256_000,
    seq_len: int = 8192,
    query_scalar: int = 256,
    window: int | None = 4096,
    layer_types: Sequence[str] = (gemma.SLIDING, gemma.FULL),
    score_cap: float = 50.0,
    logit_cap: float | None = 30.0,
    theta: float = 10_000.0,
    scaling: fdl.Config | None = None,
    eps: float = 1e-6,
    tied: bool = True,
) -> fdl.Config[Trainer]:
    """A decoder with Gemma's parts, whose scores stay within `score_cap`."""
    cfg = decoder(
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_dim=ffn_dim,
        vocab_size=vocab_size,
        seq_len=seq_len,
        windows=gemma.windows_of(layer_types, window),
        theta=theta,
        scaling=scaling,
        eps=eps,
        tied=tied,
    )
    gemma.use_gemma_parts(cfg, query_scalar=query_scalar)
    use_softcap(cfg, cap=score_cap, logit_cap=logit_cap)
    return cfg


HUB = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    config=gemma2,
    settings={
        **gemma.SETTINGS,
        "score_cap": "attn_logit_softcapping",
        "logit_cap": "final_logit_softcapping",
    },
    tensors=gemma.TENSORS,
    fixed=gemma.FIXED,
    readings=gemma.READINGS,
)


def gemma2_2b() -> fdl.Config[Trainer]:
    """2.6 billion parameters."""
    return gemma2(hidden_dim=2304, num_layers=26, ffn_dim=9216)


def gemma2_9b() -> fdl.Config[Trainer]:
    """9.2 billion parameters."""
    return gemma2(hidden_dim=3584, num_layers=42, num_heads=16, num_kv_heads=8, ffn_dim=14_336)


def gemma2_27b() -> fdl.Config[Trainer]:
    """27 billion parameters, with narrower heads."""
    return gemma2(
        hidden_dim=4608, num_layers=46, ffn_dim=36_864, query_scalar=144, **gemma.NARROW_HEADS
    )

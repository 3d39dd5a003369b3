"""Gemma 3, text only (Gemma Team, 2025, arXiv:2503.19786): five local layers per global layer.

Local layers have a sliding window and a different RoPE.
"""

from functools import partial
from typing import Any

import fiddle as fdl

from fidgpt.configs import gemma
from fidgpt.configs.hub import QK_NORMS
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, PERIODS, SLIDING, periodic_layers, rotate_in_windows_by
from fidgpt.fiddlers import use_qk_norm
from fidgpt.graph import swap_all
from fidgpt.model import LinearScaling, OffsetRMSNorm, RMSNorm
from fidgpt.train import Trainer


@variant_of(
    gemma.gemma,
    hidden_dim=2304,
    num_layers=26,
    ffn_dim=9216,
    vocab_size=262_208,
    seq_len=131_072,
    layer_types=(*[SLIDING] * 5, FULL),
    theta=1e6,
)
def gemma3(cfg: fdl.Config[Trainer], *, eps: float, local_theta: float = 10_000.0) -> None:
    """A decoder with Gemma's components; `theta` and `scaling` apply to global layers only."""
    use_qk_norm(cfg, eps=eps)
    swap_all(cfg.model, RMSNorm, by=OffsetRMSNorm)
    rotate_in_windows_by(cfg, local_theta)


HUB = gemma.near_gemma(
    "gemma3_text",
    gemma3,
    "local_theta",
    architecture="Gemma3ForCausalLM",
    tensors=QK_NORMS,
    fixed={"attn_logit_softcapping": (None,)},
    defaults={"layer_types": partial(periodic_layers, period=6)},
    known=PERIODS,
)


_small = partial(
    gemma3, num_heads=4, num_kv_heads=1, vocab_size=262_144, seq_len=32_768, window=512
)


def gemma3_270m() -> fdl.Config[Trainer]:
    """268 million parameters."""
    return _small(hidden_dim=640, num_layers=18, ffn_dim=2048)


def gemma3_1b() -> fdl.Config[Trainer]:
    """1.0 billion parameters."""
    return _small(hidden_dim=1152, num_layers=26, ffn_dim=6912)


def gemma3_4b() -> fdl.Config[Trainer]:
    """3.9 billion parameters."""
    return _large(hidden_dim=2560, num_layers=34, ffn_dim=10_240)


def gemma3_12b() -> fdl.Config[Trainer]:
    """12 billion parameters."""
    return _large(hidden_dim=3840, num_layers=48, num_heads=16, num_kv_heads=8, ffn_dim=15_360)


def gemma3_27b() -> fdl.Config[Trainer]:
    """27 billion parameters, with narrower heads."""
    return _large(
        hidden_dim=5376, num_layers=62, ffn_dim=21_504, query_scalar=168, **gemma.NARROW_HEADS
    )


def _large(**sizes: Any) -> fdl.Config[Trainer]:
    return gemma3(window=1024, scaling=fdl.Config(LinearScaling, factor=8.0), **sizes)

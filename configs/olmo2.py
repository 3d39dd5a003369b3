"""OLMo 2 (Team OLMo, 2024, arXiv:2501.00656): post-norm, and QK-norm across all heads."""

from collections.abc import Mapping
from functools import partial

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import LAYER, QK_NORMS, in_layers
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, SLIDING, periodic_layers, rotate_in_windows_by
from fidgpt.fiddlers import use_post_norm
from fidgpt.graph import find
from fidgpt.model import AcrossHeads, Attention, RMSNorm, width_of_heads
from fidgpt.tags import HeadDim, HiddenDim, NumKVHeads
from fidgpt.train import Trainer


@variant_of(decoder)
def olmo2(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """A post-norm decoder with normalized queries and keys."""
    use_post_norm(cfg)
    norm_across_heads(cfg, eps=eps)


def norm_across_heads(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """Normalize queries and keys of all heads as one vector."""
    for attention in find(cfg.model, Attention):
        attention.query_norm = _across_heads(attention.num_heads, eps)
        attention.key_norm = _across_heads(NumKVHeads.new(), eps)


def _across_heads(num_heads: object, eps: float) -> fdl.ArgFactory[AcrossHeads]:
    width: object = HiddenDim.new()
    if num_heads is not None:
        width = fdl.Config(
            width_of_heads, hidden_dim=width, head_dim=HeadDim.new(), num_heads=num_heads
        )
    norm = fdl.ArgFactory(RMSNorm, hidden_dim=width, eps=eps)
    return fdl.ArgFactory(AcrossHeads, norm=norm)


# Tensors of families with norms after the branches alone.
POST_NORMS: Mapping[str, str] = in_layers(
    LAYER, {"attention_norm": "post_attention_layernorm", "mlp_norm": "post_feedforward_layernorm"}
)
NORMS_ACROSS_HEADS: Mapping[str, str] = {f"{path}.norm": name for path, name in QK_NORMS.items()}
HUB = family("olmo2", olmo2, "attention_bias", tensors={**POST_NORMS, **NORMS_ACROSS_HEADS})


@variant_of(olmo2, window=4096, layer_types=(*[SLIDING] * 3, FULL), theta=500_000.0)
def olmo3(cfg: fdl.Config[Trainer], *, local_theta: float = 500_000.0) -> None:
    """OLMo 2 with a window in three of four layers, whose RoPE is not scaled."""
    rotate_in_windows_by(cfg, local_theta)


OLMO3 = HUB.near(
    "olmo3",
    olmo3,
    "window layer_types local_theta",
    defaults={"layer_types": periodic_layers},
)


_olmo2 = partial(olmo2, vocab_size=100_352, seq_len=4096, theta=500_000.0, eps=1e-6)


def olmo2_1b() -> fdl.Config[Trainer]:
    """1.5 billion parameters."""
    return _olmo2(hidden_dim=2048, num_layers=16, num_heads=16, ffn_dim=8192)


def olmo2_7b() -> fdl.Config[Trainer]:
    """7.3 billion parameters."""
    return _olmo2(hidden_dim=4096, num_layers=32, num_heads=32, ffn_dim=11_008)


def olmo2_13b() -> fdl.Config[Trainer]:
    """14 billion parameters."""
    return _olmo2(hidden_dim=5120, num_layers=40, num_heads=40, ffn_dim=13_824)


def olmo2_32b() -> fdl.Config[Trainer]:
    """32 billion parameters, with grouped-query attention."""
    return _olmo2(hidden_dim=5120, num_layers=64, num_heads=40, num_kv_heads=8, ffn_dim=27_648)

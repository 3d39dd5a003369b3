"""Gemma 2 (Gemma Team, 2024, arXiv:2408.00118): alternating sliding windows, capped scores."""

import fiddle as fdl

from fidgpt.configs import gemma
from fidgpt.configs.decoder import family
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, SLIDING
from fidgpt.fiddlers import use_pre_norm, use_softcap
from fidgpt.graph import find
from fidgpt.model import Attention
from fidgpt.train import Trainer


@variant_of(
    gemma.gemma, vocab_size=256_000, seq_len=8192, layer_types=(SLIDING, FULL), logit_cap=30.0
)
def gemma2(
    cfg: fdl.Config[Trainer], *, logit_cap: float | None, score_cap: float | None = 50.0
) -> None:
    """A decoder like Gemma, with scores capped at `score_cap`."""
    if score_cap is not None:
        use_softcap(cfg, cap=score_cap, logit_cap=logit_cap)


HUB = gemma.near_gemma(
    "gemma2",
    gemma2,
    settings={"score_cap": "attn_logit_softcapping"},
    known=("hidden_act", "sliding_window_size"),  # which published files have beside others
)


@variant_of(gemma2)
def vaultgemma(cfg: fdl.Config[Trainer]) -> None:
    """Gemma 2 without norms after the branches."""
    use_pre_norm(cfg)


VAULTGEMMA = HUB.near("vaultgemma", vaultgemma, architecture="VaultGemmaForCausalLM")


@variant_of(vaultgemma, layer_types=(FULL,), seq_len=8192, logit_cap=None, score_cap=None)
def gemma1(cfg: fdl.Config[Trainer]) -> None:
    """The first Gemma (2024, arXiv:2403.08295): VaultGemma without windows and caps."""
    for attention in find(cfg.model, Attention):
        attention.scale = None


_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu", None)  # old files say gelu, and mean the first one
GEMMA = family(
    "gemma",
    gemma1,
    "attention_bias",
    fixed={"hidden_act": _ACTIVATIONS, "hidden_activation": _ACTIVATIONS},
    defaults={"num_attention_heads": 16, "num_key_value_heads": 16},
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

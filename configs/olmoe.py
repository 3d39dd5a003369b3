"""OLMoE (Muennighoff et al., 2024, arXiv:2409.02060): 64 experts, and QK-norm across heads."""

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.hub import EXPERTS
from fidgpt.configs.olmo2 import NORMS_ACROSS_HEADS, norm_across_heads
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_moe
from fidgpt.graph import find
from fidgpt.model import Router
from fidgpt.train import Trainer


@variant_of(decoder)
def olmoe(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    num_experts: int = 64,
    top_k: int = 8,
    normalize: bool = False,
) -> None:
    """A decoder with normalized queries and keys, and experts in every layer."""
    norm_across_heads(cfg, eps=eps)
    use_moe(cfg, num_experts=num_experts, top_k=top_k)
    for router in find(cfg.model, Router):
        router.normalize = normalize


HUB = family(
    "olmoe",
    olmoe,
    "attention_bias num_experts top_k normalize",
    tensors={**EXPERTS, **NORMS_ACROSS_HEADS},
    fixed={"clip_qkv": (None,)},
)


def olmoe_1b_7b() -> fdl.Config[Trainer]:
    """6.9 billion parameters, 1.3 billion per token."""
    return olmoe(
        hidden_dim=2048, num_layers=16, num_heads=16, ffn_dim=1024, vocab_size=50_304, seq_len=4096
    )

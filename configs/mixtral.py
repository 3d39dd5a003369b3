"""Mixtral (Jiang et al., 2024, arXiv:2401.04088): Mistral with eight experts per layer."""

import fiddle as fdl

from fidgpt.configs import mistral
from fidgpt.configs.hub import experts_as
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_moe
from fidgpt.train import Trainer


@variant_of(mistral.mistral, theta=1e6, window=None, eps=1e-5)
def mixtral(cfg: fdl.Config[Trainer], *, num_experts: int = 8, top_k: int = 2) -> None:
    """A decoder with `top_k` of `num_experts` experts per token in every layer."""
    use_moe(cfg, num_experts=num_experts, top_k=top_k)


_MLP = "model.layers.*.block_sparse_moe"
HUB = mistral.HUB.near(
    "mixtral",
    mixtral,
    "top_k",
    settings={"num_experts": "num_local_experts"},
    tensors={"blocks.*.mlp.router": f"{_MLP}.gate", **experts_as(_MLP, "w1", "w3", "w2")},
)


def mixtral_8x7b() -> fdl.Config[Trainer]:
    """47 billion parameters, 13 billion per token."""
    return mixtral(
        hidden_dim=4096, num_layers=32, ffn_dim=14_336, vocab_size=32_000, seq_len=32_768
    )


def mixtral_8x22b() -> fdl.Config[Trainer]:
    """141 billion parameters, 39 billion per token."""
    return mixtral(
        hidden_dim=6144,
        num_layers=56,
        num_heads=48,
        ffn_dim=16_384,
        vocab_size=32_768,
        seq_len=65_536,
    )

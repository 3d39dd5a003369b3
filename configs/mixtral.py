"""Mixtral (Jiang et al., 2024, arXiv:2401.04088): Mistral with eight experts in every layer."""

import fiddle as fdl

from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import SETTINGS, TENSORS, Family, Stacked
from fidgpt.fiddlers import use_moe
from fidgpt.train import Trainer


def mixtral(
    *,
    hidden_dim: int,
    num_layers: int,
    num_heads: int,
    ffn_dim: int,
    vocab_size: int,
    seq_len: int,
    num_kv_heads: int = 8,
    head_dim: int | None = None,
    num_experts: int = 8,
    top_k: int = 2,
    window: int | None = None,
    theta: float = 1e6,
    scaling: fdl.Config | None = None,
    eps: float = 1e-5,
    tied: bool = False,
) -> fdl.Config[Trainer]:
    """A decoder whose tokens each go through `top_k` of `num_experts` MLPs in every layer."""
    cfg = decoder(
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_dim=ffn_dim,
        vocab_size=vocab_size,
        seq_len=seq_len,
        windows=[window],
        theta=theta,
        scaling=scaling,
        eps=eps,
        tied=tied,
    )
    use_moe(cfg, num_experts=num_experts, top_k=top_k)
    return cfg


_MLP = "model.layers.*.block_sparse_moe"
HUB = Family(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    config=mixtral,
    settings={
        **SETTINGS,
        "num_experts": "num_local_experts",
        "top_k": "num_experts_per_tok",
        "window": "sliding_window",
    },
    tensors={
        **TENSORS,
        "blocks.*.mlp.router": f"{_MLP}.gate",
        "blocks.*.mlp.experts.gate": Stacked(f"{_MLP}.experts.{{expert}}.w1.weight"),
        "blocks.*.mlp.experts.up": Stacked(f"{_MLP}.experts.{{expert}}.w3.weight"),
        "blocks.*.mlp.experts.down": Stacked(f"{_MLP}.experts.{{expert}}.w2.weight"),
    },
    fixed={"hidden_act": ("silu",)},
)


def mixtral_8x7b() -> fdl.Config[Trainer]:
    """47 billion parameters, 13 billion a token."""
    return mixtral(
        hidden_dim=4096,
        num_layers=32,
        num_heads=32,
        ffn_dim=14_336,
        vocab_size=32_000,
        seq_len=32_768,
    )


def mixtral_8x22b() -> fdl.Config[Trainer]:
    """141 billion parameters, 39 billion a token."""
    return mixtral(
        hidden_dim=6144,
        num_layers=56,
        num_heads=48,
        ffn_dim=16_384,
        vocab_size=32_768,
        seq_len=65_536,
    )

"""Qwen 3 MoE (Yang et al., 2025, arXiv:2505.09388): 8 of 128 small experts per token."""

from collections.abc import Mapping, Sequence

import fiddle as fdl

from fidgpt.configs import qwen3
from fidgpt.configs.hub import EXPERTS, keys
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import shortest_period
from fidgpt.fiddlers import use_moe
from fidgpt.graph import clone_part, find
from fidgpt.model import Router
from fidgpt.train import Trainer

# Settings of mixtures of experts.
MIXTURE: Mapping[str, str] = keys("expert_ffn_dim num_experts top_k normalize every dense_layers")


@variant_of(
    qwen3.qwen3, num_kv_heads=4, head_dim=None, ffn_dim=6144, vocab_size=151_936, seq_len=40_960
)
def qwen3_moe(
    cfg: fdl.Config[Trainer],
    *,
    num_layers: int,
    expert_ffn_dim: int,
    num_experts: int = 128,
    top_k: int = 8,
    normalize: bool = True,
    every: int = 1,
    dense_layers: Sequence[int] = (),
) -> None:
    """Qwen 3 with a mixture of experts in each `every`-th layer, except for `dense_layers`."""
    mix_layers(cfg, num_layers, every, dense_layers, expert_ffn_dim, num_experts, top_k, normalize)


def mix_layers(
    cfg: fdl.Config[Trainer],
    num_layers: int,
    every: int,
    dense_layers: Sequence[int],
    expert_ffn_dim: int,
    num_experts: int,
    top_k: int,
    normalize: bool,
) -> None:
    """Use a mixture of experts in each `every`-th layer, except for `dense_layers`."""
    dense = [clone_part(block) for block in cfg.model.blocks]
    use_moe(cfg, num_experts=num_experts, top_k=top_k, ffn_dim=expert_ffn_dim)
    for router in find(cfg.model, Router):
        router.normalize = normalize
    mixed, length = cfg.model.blocks, len(dense)
    layers = [
        (i % length, i not in dense_layers and (i + 1) % every == 0) for i in range(num_layers)
    ]
    cfg.model.blocks = [
        clone_part((mixed if is_mixed else dense)[place])
        for place, is_mixed in shortest_period(layers)
    ]


HUB = qwen3.HUB.near(
    "qwen3_moe",
    qwen3_moe,
    architecture="Qwen3MoeForCausalLM",
    settings={**MIXTURE, "layer_types": ..., "num_full": ...},
    tensors=EXPERTS,
    defaults={"norm_topk_prob": False, "num_key_value_heads": ..., "max_window_layers": ...},
    known=("max_window_layers", "shared_expert_intermediate_size", "use_qk_norm"),
)


def qwen3_30b_a3b() -> fdl.Config[Trainer]:
    """31 billion parameters, 3.4 billion per token."""
    return qwen3_moe(
        hidden_dim=2048, num_layers=48, num_heads=32, head_dim=128, expert_ffn_dim=768, theta=1e6
    )


def qwen3_235b_a22b() -> fdl.Config[Trainer]:
    """235 billion parameters, 22 billion per token."""
    return qwen3_moe(
        hidden_dim=4096, num_layers=94, num_heads=64, head_dim=128, expert_ffn_dim=1536, theta=1e6
    )

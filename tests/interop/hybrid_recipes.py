"""Tiny models of the families in which most layers have a recurrent mixer: one of each."""

from .more_recipes import like_llama
from .recipes import Recipe, rope

_LINEAR, _FULL = "linear_attention", "full_attention"
_KINDS = {"layer_types": [_LINEAR, _FULL, _LINEAR]}
_EXPERTS = "num_experts: 6, num_experts_per_tok: 2, moe_intermediate_size: 40"
_LOCAL = "num_local_experts: 6, num_experts_per_tok: 2"
_MAMBA = "mamba_n_heads: 8, mamba_d_head: 16, mamba_d_state: 12, mamba_expand: 2"


def _without_rope(recipe: Recipe) -> Recipe:
    """The same for a family whose class knows no RoPE."""
    known = {key: value for key, value in recipe.settings.items() if key != "rope_parameters"}
    return recipe._replace(settings=known)


_RECIPES = [
    like_llama(
        "qwen3_next",
        f"{_EXPERTS}, shared_expert_intermediate_size: 56, mlp_only_layers: [0], head_dim: 24, "
        "linear_num_key_heads: 2, linear_num_value_heads: 4, linear_key_head_dim: 12, "
        "linear_value_head_dim: 20",
        **_KINDS,
        rope_parameters=rope(1e4) | {"partial_rotary_factor": 0.5},
    ),
    like_llama("lfm2", "norm_eps: 0.001, block_multiple_of: 16, tie_word_embeddings: true").changed(
        layer_types=["conv", _FULL, "conv"]
    ),
    like_llama(
        "granitemoehybrid",
        f"{_LOCAL}, {_MAMBA}, mamba_n_groups: 2, shared_intermediate_size: 56, "
        "embedding_multiplier: 3.0, logits_scaling: 5.0, residual_multiplier: 0.3, "
        "attention_multiplier: 0.4",
        **_KINDS,
    ),
    like_llama("bamba", f"{_MAMBA}, mamba_n_groups: 2, attn_layer_indices: [1]").changed(
        rope_parameters=rope(1e4) | {"partial_rotary_factor": 0.5}
    ),
    _without_rope(  # transformers saves a dense MLP under the name of a mixture
        like_llama(
            "kimi_linear",
            f"{_LOCAL}, moe_intermediate_size: 40, n_shared_experts: 1, kv_lora_rank: 28, "
            "qk_nope_head_dim: 20, qk_rope_head_dim: 12, v_head_dim: 18, num_key_value_heads: 4, "
            "linear_head_dim: 16, linear_num_heads: 3",
            **_KINDS,
            mlp_layer_types=["sparse"] * 3,
        )
    ),
    like_llama(
        "minimax",
        f"{_LOCAL}, head_dim: 24, full_attn_alpha_factor: 1.5, linear_attn_alpha_factor: 1.3, "
        "mlp_alpha_factor: 1.2",
        **_KINDS,
    ),
]
HYBRID_RECIPES = {recipe.family: recipe for recipe in _RECIPES}

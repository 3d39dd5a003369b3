"""Tiny models of the families that are tables over parts of others: one of each."""

from typing import Any

from .recipes import Recipe, llama, rope, settings

_SLIDING, _FULL = "sliding_attention", "full_attention"
_KINDS = {"layer_types": [_SLIDING, _FULL, _SLIDING]}
_EXPERTS = "moe_intermediate_size: 40, n_routed_experts: 6, num_experts_per_tok: 2, "
_EXPERTS += "n_shared_experts: 1, first_k_dense_replace: 1, n_group: 1, topk_group: 1"
_LATENT = "num_key_value_heads: 4, kv_lora_rank: 28, q_lora_rank: 36, qk_nope_head_dim: 20, "
_LATENT += "qk_rope_head_dim: 12, v_head_dim: 18"
_INDEX = "index_topk: 5, index_n_heads: 3, index_head_dim: 20"
_LOCAL = "num_local_experts: 6, num_experts_per_tok: 2"
_SMALL = "intermediate_size: 40, num_experts: 6, num_experts_per_tok: 2"
_GPT = settings(
    """vocab_size: 97, initializer_range: 0.1, n_positions: 64, n_embd: 64, n_layer: 3, n_head: 4,
    n_inner: 100, resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0, bos_token_id: 0,
    eos_token_id: 0, rotary_dim: 8"""
)


def like_llama(family: str, text: str = "", **more: Any) -> Recipe:
    return llama(family, 1e4, f"bos_token_id: 1, eos_token_id: 2, pad_token_id: 0, {text}", **more)


def plain(family: str, text: str) -> Recipe:
    """A model without RoPE, of 3 layers with 4 heads."""
    common = "vocab_size: 97, hidden_size: 64, max_position_embeddings: 64, initializer_range: 0.1"
    return Recipe(family, settings(f"{common}, pad_token_id: 0, eos_token_id: 2, {text}"))


_YARN = "factor: 4.0, original_max_position_embeddings: 16, llama_4_scaling_beta: 0.3"
_HEADS = "num_hidden_layers: 3, num_attention_heads: 4, intermediate_size: 100"
_RECIPES = [
    like_llama("gemma", "head_dim: 24, tie_word_embeddings: true, rms_norm_eps: 0.000001"),
    like_llama("vaultgemma", "head_dim: 24, sliding_window: 5, tie_word_embeddings: true"),
    like_llama("olmo"),
    like_llama(
        "olmo3",
        "sliding_window: 5",
        **_KINDS,
        rope_parameters={_FULL: rope(1e4, "linear", "factor: 4.0"), _SLIDING: rope(1e4)},
    ),
    like_llama("cohere2", "sliding_window: 5, tie_word_embeddings: true", **_KINDS),
    like_llama("ministral", "sliding_window: 5, head_dim: 24", **_KINDS),
    like_llama("ministral3", "head_dim: 24", rope_parameters=rope(1e4, "yarn", _YARN)),
    like_llama("cwm", "sliding_window: 5, head_dim: 24", **_KINDS),
    like_llama("seed_oss", "head_dim: 24, attention_bias: true, attention_out_bias: false"),
    like_llama("exaone4", "sliding_window: 5", **_KINDS),
    like_llama("exaone_moe", f"{_SMALL}, moe_intermediate_size: 40, sliding_window: 5", **_KINDS),
    like_llama("glm", "head_dim: 16"),
    like_llama("glm4", "head_dim: 24"),
    like_llama("glm4_moe", f"{_EXPERTS}, head_dim: 24, use_qk_norm: true, attention_bias: true"),
    like_llama("glm4_moe_lite", f"{_EXPERTS}, {_LATENT}"),
    like_llama("solar_open", f"{_EXPERTS}, head_dim: 24"),
    like_llama("dots1", f"{_EXPERTS}, n_group: 2"),
    like_llama("kimi_k2", f"{_EXPERTS}, {_LATENT}"),
    like_llama("youtu", _LATENT),
    like_llama("minimax_m2", f"{_LOCAL}, head_dim: 24"),
    like_llama("mellum", f"{_LOCAL}, moe_intermediate_size: 40, sliding_window: 5, head_dim: 24")
    .changed(layer_types=[_SLIDING, _FULL, _SLIDING], mlp_layer_types=["sparse"] * 3)
    .changed(rope_parameters={_FULL: rope(1e5), _SLIDING: rope(1e4)}),
    like_llama("ernie4_5", "head_dim: 24, use_bias: true, tie_word_embeddings: true"),
    like_llama("helium", "head_dim: 16"),
    like_llama("arcee", "mlp_bias: true"),
    like_llama("jais2", "attention_bias: true, head_dim: 16"),
    like_llama("starcoder2", "sliding_window: 5, norm_epsilon: 0.001"),
    like_llama("nemotron", "head_dim: 16, attention_bias: true, mlp_bias: true"),
    like_llama("persimmon", "num_key_value_heads: 4"),
    like_llama("phi", "layer_norm_eps: 0.001"),
    like_llama("hunyuan_v1_dense", "head_dim: 24"),
    like_llama("hyperclovax", "attention_multiplier: 0.4, residual_multiplier: 0.3, head_dim: 16"),
    like_llama("internlm3", "qkv_bias: true, bias: true, head_dim: 16"),
    like_llama("iquestcoder", "head_dim: 16"),
    like_llama(
        "qwen2_moe",
        f"{_SMALL}, moe_intermediate_size: 40, shared_expert_intermediate_size: 56, "
        "mlp_only_layers: [0]",
    ),
    like_llama("granitemoe", f"{_LOCAL}, embedding_multiplier: 3.0, logits_scaling: 5.0"),
    like_llama("granitemoeshared", f"{_LOCAL}, shared_intermediate_size: 56"),
    like_llama("flex_olmo", f"{_SMALL}, norm_topk_prob: true"),
    plain("opt", "num_hidden_layers: 3, num_attention_heads: 4, ffn_dim: 100, "
          "word_embed_proj_dim: 64, dropout: 0.0"),
    plain("biogpt", f"{_HEADS}, layer_norm_eps: 0.001"),
    plain("bloom", "n_layer: 3, n_head: 4"),
    plain("gpt_neo", "num_layers: 3, num_heads: 4, intermediate_size: 100, window_size: 5, "
          "attention_types: [[[global, local, local], 1]]"),
    Recipe("gpt_bigcode", _GPT),
    Recipe("gptj", _GPT),
    Recipe("gpt-sw3", _GPT),
]  # fmt: skip


# Attention in some layers, and recurrent mixers in the others.
_LINEAR = "linear_attention"
_HYBRID = {"layer_types": [_LINEAR, _FULL, _LINEAR]}
_ROUTED = "num_experts: 6, num_experts_per_tok: 2, moe_intermediate_size: 40"
_MAMBA = "mamba_n_heads: 8, mamba_d_head: 16, mamba_d_state: 12, mamba_expand: 2, "
_MAMBA += "mamba_chunk_size: 16"  # the default pads rows to 256 tokens


def _without_rope(recipe: Recipe) -> Recipe:
    """The same for a family whose class knows no RoPE."""
    known = {key: value for key, value in recipe.settings.items() if key != "rope_parameters"}
    return recipe._replace(settings=known)


_RECIPES += [
    like_llama(
        "qwen3_next",
        f"{_ROUTED}, shared_expert_intermediate_size: 56, mlp_only_layers: [0], head_dim: 24, "
        "linear_num_key_heads: 2, linear_num_value_heads: 4, linear_key_head_dim: 12, "
        "linear_value_head_dim: 20",
        **_HYBRID,
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
        **_HYBRID,
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
            **_HYBRID,
            mlp_layer_types=["sparse"] * 3,
        )
    ),
    like_llama(
        "minimax",
        f"{_LOCAL}, head_dim: 24, full_attn_alpha_factor: 1.5, linear_attn_alpha_factor: 1.3, "
        "mlp_alpha_factor: 1.2",
        **_HYBRID,
    ),
]
_ANY = "moe_intermediate_size: 40, num_experts: 6, num_experts_per_tok: 2"
_DELTA = "linear_num_key_heads: 2, linear_num_value_heads: 4, linear_key_head_dim: 12, "
_DELTA += "linear_value_head_dim: 20, head_dim: 24"
_ENDS = "vocab_size: 97, initializer_range: 0.1, pad_token_id: 0, bos_token_id: 1, eos_token_id: 2"
_RECIPES += [
    like_llama("stablelm", "qk_layernorm: true, use_qkv_bias: true").changed(
        rope_parameters=rope(1e4) | {"partial_rotary_factor": 0.25}
    ),
    like_llama("apertus", "attention_bias: true"),
    like_llama("nanochat", "attention_bias: true, final_logit_softcapping: 3.0"),
    like_llama(
        "granite_swa",
        "sliding_window: 5, layer_rope_theta: [0, 10000.0, 500.0], embedding_multiplier: 3.0, "
        "attention_multiplier: 0.4, residual_multiplier: 0.3, logits_scaling: 5.0",
        **_KINDS,
    ),
    like_llama(
        "granitemoe_swa",
        f"{_LOCAL}, sliding_window: 5, attention_multiplier: 0.4, shared_intermediate_size: 56",
        **_KINDS,
    ),
    like_llama(
        "minicpm3",
        f"{_LATENT}, scale_emb: 3, scale_depth: 0.9, dim_model_base: 40, tie_word_embeddings: true",
    ),
    like_llama("qwen3_5_text", _DELTA, **_HYBRID).changed(
        rope_parameters=rope(1e4) | {"partial_rotary_factor": 0.5}
    ),
    like_llama(
        "qwen3_5_moe_text", f"{_DELTA}, {_ANY}, shared_expert_intermediate_size: 56", **_HYBRID
    ).changed(rope_parameters=rope(1e4) | {"partial_rotary_factor": 0.5}),
    like_llama(
        "ernie4_5_moe",
        "moe_intermediate_size: 40, moe_num_experts: 6, moe_k: 2, moe_num_shared_experts: 2, "
        "moe_layer_start_index: 1, moe_layer_end_index: 2",
    ),
    like_llama("hunyuan_v1_moe", "num_experts: 6, moe_topk: 2, head_dim: 24").changed(
        rope_parameters=rope(1e4, "dynamic", "factor: 1.0, alpha: 1000.0")
    ),
    like_llama("hy_v3", f"{_ANY}, head_dim: 24, router_scaling_factor: 1.7"),
    like_llama(
        "kolibri1",
        f"{_ANY}, head_dim: 24, shared_expert_intermediate_size: 56, sliding_window: 5, "
        "norm_topk_prob: true",
        **_KINDS,
    ),
    like_llama(
        "afmoe",
        f"{_ANY}, head_dim: 24, num_dense_layers: 1, sliding_window: 5, mup_enabled: true, "
        "route_scale: 1.7",
        **_KINDS,
    ),
    like_llama(
        "lfm2_moe", f"{_ANY}, num_dense_layers: 1, norm_eps: 0.001, routed_scaling_factor: 1.7"
    ).changed(layer_types=["conv", _FULL, "conv"]),
    like_llama("aria_text", "moe_num_experts: 6, moe_topk: 2, intermediate_size: 40"),
    like_llama(
        "flint",
        f"{_ANY}, head_dim: 24, shared_expert_intermediate_size: 56, sliding_window: 5, "
        "mlp_only_layers: [0]",
        **_KINDS,
    ),
    like_llama("axk1", f"{_EXPERTS}, {_LATENT}").changed(
        mlp_layer_types=["dense", "sparse", "sparse"]
    ),
    like_llama(
        "llama4_text",
        "num_hidden_layers: 4, num_local_experts: 6, num_experts_per_tok: 2, head_dim: 24, "
        "intermediate_size: 40, intermediate_size_mlp: 100, moe_layers: [1, 3], "
        "no_rope_layers: [1, 1, 0, 1], attention_chunk_size: 8, floor_scale: 5, attn_scale: 0.7",
    ),
    Recipe("ctrl", settings(f"{_ENDS}, n_embd: 64, n_layer: 3, n_head: 4, n_positions: 64, "
           "dff: 100, resid_pdrop: 0.0, embd_pdrop: 0.0")),
    Recipe("mpt", settings(f"{_ENDS}, d_model: 64, n_layers: 3, n_heads: 4, max_seq_len: 64")),
    Recipe("codegen", _GPT),
    Recipe("xglm", settings(f"{_ENDS}, d_model: 64, num_layers: 3, attention_heads: 4, "
           "ffn_dim: 100, max_position_embeddings: 64, dropout: 0.0, attention_dropout: 0.0")),
    Recipe("openai-gpt", settings(f"{_ENDS}, n_embd: 64, n_layer: 3, n_head: 4, n_positions: 64, "
           "resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0")),
    like_llama(
        "modernbert-decoder",
        "local_attention: 10, norm_eps: 0.001, tie_word_embeddings: true",
        layer_types=[_FULL, _SLIDING, _SLIDING],
        rope_parameters={_FULL: rope(1e5), _SLIDING: rope(1e4)},
    ),
    like_llama(
        "olmo_hybrid",
        "linear_num_key_heads: 2, linear_num_value_heads: 2, linear_key_head_dim: 20, "
        "linear_value_head_dim: 20",
        **_HYBRID,
        rope_parameters=rope(1e4) | {"rope_theta": None},
    ),
    like_llama("phimoe", f"{_LOCAL}, attention_bias: true, lm_head_bias: true, "
               "router_jitter_noise: 0.2, input_jitter_noise: 0.0"),
    Recipe(
        "mamba2",
        settings(
            f"{_ENDS}, hidden_size: 64, num_hidden_layers: 3, num_heads: 8, head_dim: 16, "
            "state_size: 12, n_groups: 2, expand: 2, chunk_size: 16"
        ),
    ),
    _without_rope(
        like_llama(
            "nemotron_h",
            "num_hidden_layers: 4, mamba_num_heads: 8, mamba_head_dim: 16, ssm_state_size: 12, "
            "chunk_size: 16, "
            "n_groups: 2, n_routed_experts: 6, num_experts_per_tok: 2, moe_intermediate_size: 40, "
            "moe_shared_expert_intermediate_size: 56, head_dim: 24, routed_scaling_factor: 1.7, "
            "attention_bias: true, mlp_bias: true",
            layers_block_type=[_LINEAR, _FULL, "moe", "mlp"],
        )
    ),
    like_llama("gpt_neox_japanese", "intermediate_multiple_size: 3, attention_dropout: 0.0")
    .changed(rope_parameters=rope(1e4) | {"partial_rotary_factor": 0.5}),
    like_llama(
        "laguna",
        f"{_ANY}, head_dim: 24, shared_expert_intermediate_size: 56, sliding_window: 5, "
        "moe_routed_scaling_factor: 1.7",
        **_KINDS,
        rope_parameters={
            _FULL: rope(1e5, "linear", "factor: 4.0") | {"partial_rotary_factor": 0.5},
            _SLIDING: rope(1e4),
        },
    ),
    like_llama(
        "cohere2_moe",
        "num_experts: 6, num_experts_per_tok: 2, intermediate_size: 40, head_dim: 24, "
        "sliding_window: 5, tie_word_embeddings: true, expert_selection_fn: sigmoid, "
        "rms_norm_eps: null",
        **_KINDS,
    ),
    like_llama(
        "falcon_h1",
        "mamba_d_ssm: 96, mamba_n_heads: 6, mamba_d_head: 16, mamba_d_state: 12, "
        "mamba_chunk_size: 16, "
        "mamba_n_groups: 2, embedding_multiplier: 3.0, lm_head_multiplier: 0.6, "
        "mlp_multipliers: [0.7, 1.3], key_multiplier: 0.8, attention_in_multiplier: 1.2, "
        "attention_out_multiplier: 0.9, ssm_in_multiplier: 1.1, ssm_out_multiplier: 0.8, "
        "ssm_multipliers: [0.7, 0.8, 0.9, 1.2, 1.4]",
    ),
    like_llama("deepseek_v32", f"{_EXPERTS}, {_LATENT}, {_INDEX}"),
    like_llama("glm_moe_dsa", f"{_EXPERTS}, {_LATENT}, {_INDEX}"),
    like_llama("lfm3", "head_dim: 24, norm_eps: 0.001, sliding_window: 5").changed(
        layer_types=["conv", _FULL, _SLIDING],
        rope_parameters={
            _FULL: rope(1e5, "proportional") | {"partial_rotary_factor": 0.5},
            _SLIDING: rope(1e4),
        },
    ),
]  # fmt: skip
MORE_RECIPES = {recipe.family: recipe for recipe in _RECIPES}
# Families that rotate in layers with a window only, in further orders of layers.
_NO_WINDOW: dict[str, Any] = {"layer_types": [_FULL] * 3}
ROTATED = {
    "exaone4_full": MORE_RECIPES["exaone4"].changed(window=5, **_NO_WINDOW),  # none is rotated
    "exaone4_unset": MORE_RECIPES["exaone4"].changed("sliding_window: null", **_NO_WINDOW),
    "exaone_moe_late": MORE_RECIPES["exaone_moe"].changed(layer_types=[_FULL, _SLIDING, _FULL]),
    "exaone_moe_dense": MORE_RECIPES["exaone_moe"].changed("first_k_dense_replace: 2"),
    "cohere2_full": MORE_RECIPES["cohere2"].changed(window=5, **_NO_WINDOW),
}

"""Tiny models of transformers: every size another one, nothing at 0, and variants of these."""

from typing import Any, NamedTuple

import yaml


class Recipe(NamedTuple):
    """A tiny model.

    Attributes:
      family: its model_type.
      settings: arguments of its config class.
      window: of the layers that have one.
      by_kind: whether its masks are given for each kind of layer.
    """

    family: str
    settings: dict[str, Any]
    window: int | None = None
    by_kind: bool = False

    def changed(self, text: str = "", *, window: int | None = None, **more: Any) -> "Recipe":
        """Return a variant with other settings, written as in YAML."""
        return self._replace(settings=self.settings | settings(text) | more, window=window)


def settings(text: str) -> dict[str, Any]:
    return yaml.safe_load(f"{{{text}}}")


def rope(theta: float, kind: str = "default", text: str = "") -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": theta, **settings(text)}


# Short original lengths, so that all kinds of waves occur.
_LENGTH = "factor: 4.0, beta_fast: 32, beta_slow: 1, original_max_position_embeddings: 32"
_LLAMA3 = rope(
    5e5,
    "llama3",
    "factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, "
    "original_max_position_embeddings: 32",
)
_YARN = rope(1e4, "yarn", f"{_LENGTH}, mscale: 0.707, mscale_all_dim: 0.707")
_SLIDING, _FULL = "sliding_attention", "full_attention"
_GPT2 = settings(
    """vocab_size: 97, initializer_range: 0.1, n_positions: 48, n_embd: 64, n_layer: 3, n_head: 4,
    n_inner: 200, resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0, bos_token_id: 0,
    eos_token_id: 0"""
)
_LLAMA = settings(
    """vocab_size: 97, initializer_range: 0.1, hidden_size: 64, intermediate_size: 168,
    num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2, rms_norm_eps: 0.00001,
    max_position_embeddings: 64, tie_word_embeddings: false"""
)
# The eps is not that of the latents' norms.
_LATENT = _LLAMA | settings(
    """num_key_value_heads: 4, moe_intermediate_size: 40, kv_lora_rank: 28, qk_nope_head_dim: 20,
    qk_rope_head_dim: 12, v_head_dim: 18, num_experts_per_tok: 3, first_k_dense_replace: 1,
    max_position_embeddings: 128, rms_norm_eps: 0.001"""
)


def llama(
    family: str, theta: float, text: str = "", *, by_kind: bool = False, **more: Any
) -> Recipe:
    window = more.pop("window", None)
    own = {"rope_parameters": rope(theta), **settings(text), **more}
    return Recipe(family, _LLAMA | own, window, by_kind)


_TINY = {
    "gpt2": Recipe("gpt2", _GPT2),
    "llama": llama("llama", 1e4),
    # Heads do not fill the width.
    "mistral": llama(
        "mistral", 1e4, "num_hidden_layers: 2, head_dim: 24, sliding_window: 5", window=5
    ),
    "mixtral": llama(
        "mixtral",
        1e6,
        """intermediate_size: 88, num_hidden_layers: 2, num_local_experts: 5,
        num_experts_per_tok: 2, sliding_window: null""",
    ),
    "qwen2": llama(
        "qwen2",
        1e6,
        """rms_norm_eps: 0.000001, use_sliding_window: false, sliding_window: 5,
        max_window_layers: 2, tie_word_embeddings: true""",
        by_kind=True,
    ),
    "qwen3": llama("qwen3", 1e6, "head_dim: 24, rms_norm_eps: 0.000001", by_kind=True),
    "qwen3_moe": llama(
        "qwen3_moe",
        1e6,
        """head_dim: 24, moe_intermediate_size: 40, num_experts: 6, num_experts_per_tok: 2,
        norm_topk_prob: true, decoder_sparse_step: 1, mlp_only_layers: [0],
        rms_norm_eps: 0.000001""",
    ),
    # Caps are so small that they matter.
    "gemma2": llama(
        "gemma2",
        1e4,
        """num_hidden_layers: 4, head_dim: 24, query_pre_attn_scalar: 20, sliding_window: 5,
        attn_logit_softcapping: 5.0, final_logit_softcapping: 3.0, rms_norm_eps: 0.000001,
        tie_word_embeddings: true""",
        window=5,
        by_kind=True,
    ),
    "gemma3": llama(
        "gemma3_text",
        1e6,
        """num_hidden_layers: 4, head_dim: 24, query_pre_attn_scalar: 20, sliding_window: 5,
        rms_norm_eps: 0.000001, tie_word_embeddings: true""",
        layer_types=[_SLIDING, _SLIDING, _FULL, _SLIDING],
        rope_parameters={_FULL: rope(1e6, "linear", "factor: 8.0"), _SLIDING: rope(1e4)},
        window=5,
        by_kind=True,
    ),
    "deepseek_v2": Recipe(
        "deepseek_v2",
        _LATENT
        | settings(
            """q_lora_rank: null, n_routed_experts: 6, n_shared_experts: 2, topk_method: greedy,
            n_group: 1, topk_group: 1, norm_topk_prob: false, routed_scaling_factor: 1.0"""
        )
        | {"rope_parameters": _YARN},
    ),
    "deepseek_v3": Recipe(
        "deepseek_v3",
        _LATENT
        | settings(
            """q_lora_rank: 36, n_routed_experts: 8, n_shared_experts: 1, n_group: 4,
            topk_group: 2, norm_topk_prob: true, routed_scaling_factor: 2.5,
            rope_interleave: true"""
        )
        | {"rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "olmo2": llama("olmo2", 5e5, "rms_norm_eps: 0.000001, pad_token_id: 1, eos_token_id: 2"),
    "smollm3": llama(
        "smollm3",
        5e6,
        """num_hidden_layers: 4, rms_norm_eps: 0.000001, no_rope_layer_interval: 3,
        tie_word_embeddings: true, pad_token_id: 0, bos_token_id: 1, eos_token_id: 2""",
        by_kind=True,
    ),
    # The width of experts is not hidden_size, so that a wrong side shows; the limit matters.
    "gpt_oss": llama(
        "gpt_oss",
        150000.0,
        """intermediate_size: 40, num_hidden_layers: 4, head_dim: 24, num_local_experts: 6,
        num_experts_per_tok: 2, sliding_window: 5, swiglu_limit: 0.3,
        max_position_embeddings: 128""",
        rope_parameters=rope(150000.0, "yarn", f"{_LENGTH}, truncate: false"),
        window=5,
        by_kind=True,
    ),
    "phi3": llama("phi3", 1e4, "pad_token_id: 0, sliding_window: 5", window=5),
    "gpt_neox": llama(
        "gpt_neox",
        1e4,
        "layer_norm_eps: 0.001",
        rope_parameters=rope(1e4, text="partial_rotary_factor: 0.5"),
    ),
    # Far from 1, and in no simple ratio.
    "granite": llama(
        "granite",
        1e4,
        """embedding_multiplier: 3.0, attention_multiplier: 0.4, residual_multiplier: 0.3,
        logits_scaling: 5.0, tie_word_embeddings: true""",
    ),
    "olmoe": llama(
        "olmoe",
        1e4,
        """intermediate_size: 40, num_experts: 6, num_experts_per_tok: 2, pad_token_id: 1,
        eos_token_id: 2""",
    ),
    "cohere": llama("cohere", 5e5, "layer_norm_eps: 0.001, logit_scale: 0.3, eos_token_id: 2"),
    "falcon": llama(
        "falcon", 1e4, "layer_norm_epsilon: 0.001, tie_word_embeddings: true, bos_token_id: 1"
    ),
}
_WINDOW, _BIASES = "use_sliding_window: true, sliding_window: 5", "attention_bias: true"
# Further values of each key, several in one model if they are independent.
_VARIANTS = {
    "gpt2_scaled_by_layer": _TINY["gpt2"].changed("scale_attn_by_inverse_layer_idx: true"),
    "gpt2_untied_and_scaled_by_layer_alone": _TINY["gpt2"].changed(
        """tie_word_embeddings: false, scale_attn_weights: false, reorder_and_upcast_attn: true,
        scale_attn_by_inverse_layer_idx: true"""
    ),
    "llama_biases": _TINY["llama"].changed(f"{_BIASES}, mlp_bias: true"),
    "llama3_2": _TINY["llama"].changed(
        """num_hidden_layers: 2, head_dim: 24, max_position_embeddings: 256,
        tie_word_embeddings: true""",
        rope_parameters=_LLAMA3,
    ),
    # Heads do not fill the width, and share keys.
    "olmo2_wide": _TINY["olmo2"].changed(f"head_dim: 24, num_key_value_heads: 2, {_BIASES}"),
    # A RoPE with a default scaling, and no window.
    "gpt_oss_plain": _TINY["gpt_oss"].changed(
        "sliding_window: 128, attention_bias: false",
        rope_parameters=rope(150000.0),
        layer_types=[_FULL] * 4,
    ),
    "smollm3_window": _TINY["smollm3"].changed(_WINDOW, window=5),
    "qwen2_late_window": _TINY["qwen2"].changed(f"max_window_layers: 2, {_WINDOW}", window=5),
    "qwen3_window": _TINY["qwen3"].changed(
        f"{_BIASES}, {_WINDOW}", window=5, layer_types=[_SLIDING, _FULL, _SLIDING]
    ),
    "qwen3_moe_window": _TINY["qwen3_moe"].changed(f"{_BIASES}, {_WINDOW}", window=5),
    "qwen3_moe_sparse": _TINY["qwen3_moe"].changed(
        "num_hidden_layers: 4, decoder_sparse_step: 2, mlp_only_layers: [], norm_topk_prob: false"
    ),
    "deepseek_v2_grouped": _TINY["deepseek_v2"].changed(
        """q_lora_rank: 36, n_routed_experts: 8, topk_method: group_limited_greedy, n_group: 4,
        topk_group: 2, routed_scaling_factor: 1.6"""
    ),
    "phi3_partial": _TINY["phi3"].changed(
        "num_attention_heads: 8",
        window=5,
        rope_parameters=rope(1e4, text="partial_rotary_factor: 0.75"),
    ),
    "gpt_neox_sequential": _TINY["gpt_neox"].changed(
        "use_parallel_residual: false, hidden_act: gelu_new, attention_bias: false"
    ),
    "granite_biases": _TINY["granite"].changed(
        f"{_BIASES}, mlp_bias: true, tie_word_embeddings: false", rope_parameters=_LLAMA3
    ),
    "command_r_plus": _TINY["cohere"].changed("use_qk_norm: true"),
    "falcon_grouped": _TINY["falcon"].changed(
        "new_decoder_architecture: true, num_kv_heads: 2, bias: true, ffn_hidden_size: 100"
    ),
    "falcon_grouped_one_norm": _TINY["falcon"].changed(
        "new_decoder_architecture: true, num_kv_heads: 2, num_ln_in_parallel_attn: 1"
    ),
    "gemma2_capped_logits": _TINY["gemma2"].changed(
        f"attn_logit_softcapping: null, {_BIASES}", window=5
    ),
    "gemma2_capped_scores": _TINY["gemma2"].changed("final_logit_softcapping: null", window=5),
    "gemma3_capped_logits": _TINY["gemma3"].changed(
        f"final_logit_softcapping: 3.0, {_BIASES}", window=5
    ),
}
RECIPES = _TINY | _VARIANTS

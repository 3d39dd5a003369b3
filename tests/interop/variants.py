"""What the hub's files may say besides of the tiny models: one or two more for each word."""

from typing import Any

from .recipes import RECIPES, Recipe

_SLIDING, _FULL = "sliding_attention", "full_attention"
_WINDOW = dict(use_sliding_window=True, sliding_window=5)
_BIASED = dict(attention_bias=True)


def _changed(name: str, *, window: int | None = None, **settings: Any) -> Recipe:
    """A tiny model of which something is said otherwise."""
    recipe = RECIPES[name]
    return recipe._replace(settings=recipe.settings | settings, window=window)


VARIANTS = {
    "gpt2_scaled_by_layer": _changed("gpt2", scale_attn_by_inverse_layer_idx=True),
    "gpt2_unscaled": _changed("gpt2", scale_attn_weights=False),
    "gpt2_scaled_by_layer_alone": _changed(
        "gpt2",
        scale_attn_weights=False,
        scale_attn_by_inverse_layer_idx=True,
        reorder_and_upcast_attn=True,
    ),
    # Heads do not fill the width, and share keys.
    "olmo2_wide": _changed("olmo2", head_dim=24, num_key_value_heads=2),
    # A RoPE that silence would stretch, and no window.
    "gpt_oss_plain": _changed(
        "gpt_oss",
        rope_parameters=dict(rope_type="default", rope_theta=150000.0),
        layer_types=[_FULL] * 4,
        sliding_window=128,
    ),
    "smollm3_nope": _changed("smollm3", no_rope_layers=[0] * 4),
    "qwen3_moe_sparse": _changed(
        "qwen3_moe",
        num_hidden_layers=4,
        decoder_sparse_step=2,
        mlp_only_layers=[],
        norm_topk_prob=False,
    ),
    "deepseek_v2_grouped": _changed(
        "deepseek_v2",
        q_lora_rank=36,
        n_routed_experts=8,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.6,
    ),
    # No layer has experts.
    "deepseek_v2_dense": _changed("deepseek_v2", first_k_dense_replace=3),
    "deepseek_v3_biases": _changed("deepseek_v3", **_BIASED),
    "qwen3_biases": _changed("qwen3", **_BIASED),
    "qwen3_moe_biases": _changed("qwen3_moe", **_BIASED),
    "gemma2_biases": _changed("gemma2", window=5, **_BIASED),
    "gemma3_biases": _changed("gemma3", window=5, **_BIASED),
    "olmo2_biases": _changed("olmo2", **_BIASED),
    "smollm3_biases": _changed("smollm3", mlp_bias=True, **_BIASED),
    "gpt_oss_no_biases": _changed("gpt_oss", window=5, attention_bias=False),
    "gemma2_no_caps": _changed(
        "gemma2", window=5, attn_logit_softcapping=None, final_logit_softcapping=None
    ),
    "gemma2_capped_logits": _changed("gemma2", window=5, attn_logit_softcapping=None),
    "gemma2_capped_scores": _changed("gemma2", window=5, final_logit_softcapping=None),
    "gemma3_capped_logits": _changed("gemma3", window=5, final_logit_softcapping=3.0),
    "qwen2_late_window": _changed("qwen2", window=5, max_window_layers=2, **_WINDOW),
    # The window would begin after the last layer.
    "qwen2_no_window": _changed("qwen2", max_window_layers=3, **_WINDOW),
    "qwen3_window": _changed("qwen3", window=5, layer_types=[_SLIDING, _FULL, _SLIDING], **_WINDOW),
    "qwen3_moe_window": _changed("qwen3_moe", window=5, **_WINDOW),
    "smollm3_window": _changed("smollm3", window=5, **_WINDOW),
}

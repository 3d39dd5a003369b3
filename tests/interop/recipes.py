"""Tiny models of transformers: every size another one, nothing at 0, and variants of these."""

from typing import Any, NamedTuple

_LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,  # short, so that all three kinds of waves occur
)
_YARN = dict(
    rope_type="yarn",
    rope_theta=10000.0,
    factor=4.0,
    beta_fast=32,
    beta_slow=1,
    mscale=0.707,
    mscale_all_dim=0.707,
    original_max_position_embeddings=32,
)
_YARN_OSS = dict(
    rope_type="yarn",
    rope_theta=150000.0,
    factor=4.0,
    beta_fast=32.0,
    beta_slow=1.0,
    truncate=False,
    original_max_position_embeddings=32,
)
_SLIDING, _FULL = "sliding_attention", "full_attention"
_ALL = dict(vocab_size=97, initializer_range=0.1)
_LS = _ALL | dict(  # what Llama calls it
    hidden_size=64,
    intermediate_size=168,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)
_MLA = dict(
    num_key_value_heads=4,
    moe_intermediate_size=40,
    kv_lora_rank=28,
    qk_nope_head_dim=20,
    qk_rope_head_dim=12,
    v_head_dim=18,
    num_experts_per_tok=3,
    first_k_dense_replace=1,
    max_position_embeddings=128,
    rms_norm_eps=1e-3,  # not that of the latents' norms
)


def _rope(theta: float) -> dict[str, Any]:
    return dict(rope_type="default", rope_theta=theta)


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


_TINY = {
    "gpt2": Recipe(
        "gpt2",
        _ALL
        | dict(
            n_positions=48,
            n_embd=64,
            n_layer=3,
            n_head=4,
            n_inner=200,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        ),
    ),
    "gpt2_relu": Recipe(
        "gpt2",
        _ALL | dict(n_positions=48, n_embd=64, n_layer=2, n_head=4, activation_function="relu"),
    ),
    "llama": Recipe("llama", _LS | dict(rope_parameters=_rope(10000.0))),
    "llama_biases": Recipe("llama", _LS | dict(attention_bias=True, mlp_bias=True)),
    "llama3_2": Recipe(
        "llama",
        _LS
        | dict(
            num_hidden_layers=2,
            head_dim=24,  # heads do not fill the width
            max_position_embeddings=256,
            rope_parameters=_LLAMA3,
            tie_word_embeddings=True,
        ),
    ),
    "mistral": Recipe(
        "mistral",
        _LS
        | dict(num_hidden_layers=2, head_dim=24, sliding_window=5, rope_parameters=_rope(10000.0)),
        window=5,
    ),
    "mixtral": Recipe(
        "mixtral",
        _LS
        | dict(
            intermediate_size=88,
            num_hidden_layers=2,
            num_local_experts=5,
            num_experts_per_tok=2,
            sliding_window=None,
            rope_parameters=_rope(1e6),
        ),
    ),
    "qwen2": Recipe(
        "qwen2",
        _LS
        | dict(
            rms_norm_eps=1e-6,
            use_sliding_window=False,
            sliding_window=5,
            max_window_layers=2,
            rope_parameters=_rope(1e6),
            tie_word_embeddings=True,
        ),
        by_kind=True,
    ),
    "qwen3": Recipe(
        "qwen3",
        _LS | dict(head_dim=24, rms_norm_eps=1e-6, rope_parameters=_rope(1e6)),
        by_kind=True,
    ),
    "qwen3_moe": Recipe(
        "qwen3_moe",
        _LS
        | dict(
            head_dim=24,
            moe_intermediate_size=40,
            num_experts=6,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[0],
            rms_norm_eps=1e-6,
            rope_parameters=_rope(1e6),
        ),
    ),
    "gemma2": Recipe(
        "gemma2",
        _LS
        | dict(
            num_hidden_layers=4,
            head_dim=24,
            query_pre_attn_scalar=20,
            sliding_window=5,
            attn_logit_softcapping=5.0,  # so small that they matter
            final_logit_softcapping=3.0,
            rms_norm_eps=1e-6,
            rope_parameters=_rope(10000.0),
            tie_word_embeddings=True,
        ),
        window=5,
        by_kind=True,
    ),
    "gemma3": Recipe(
        "gemma3_text",
        _LS
        | dict(
            num_hidden_layers=4,
            head_dim=24,
            query_pre_attn_scalar=20,
            sliding_window=5,
            layer_types=[_SLIDING, _SLIDING, _FULL, _SLIDING],
            rms_norm_eps=1e-6,
            rope_parameters={
                _FULL: dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                _SLIDING: _rope(10000.0),
            },
            tie_word_embeddings=True,
        ),
        window=5,
        by_kind=True,
    ),
    "deepseek_v2": Recipe(
        "deepseek_v2",
        _LS
        | _MLA
        | dict(
            q_lora_rank=None,
            n_routed_experts=6,
            n_shared_experts=2,
            topk_method="greedy",
            n_group=1,
            topk_group=1,
            norm_topk_prob=False,
            routed_scaling_factor=1.0,
            rope_parameters=_YARN,
        ),
    ),
    "deepseek_v3": Recipe(
        "deepseek_v3",
        _LS
        | _MLA
        | dict(
            q_lora_rank=36,
            n_routed_experts=8,
            n_shared_experts=1,
            n_group=4,
            topk_group=2,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
            rope_interleave=True,
            rope_parameters=_YARN | dict(mscale=1.0, mscale_all_dim=1.0),
        ),
    ),
    "olmo2": Recipe(
        "olmo2",
        _LS
        | dict(rms_norm_eps=1e-6, rope_parameters=_rope(500000.0), pad_token_id=1, eos_token_id=2),
    ),
    "smollm3": Recipe(
        "smollm3",
        _LS
        | dict(
            num_hidden_layers=4,
            rms_norm_eps=1e-6,
            no_rope_layer_interval=3,
            rope_parameters=_rope(5e6),
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        by_kind=True,
    ),
    "gpt_oss": Recipe(
        "gpt_oss",
        _LS
        | dict(
            intermediate_size=40,  # not hidden_size, so that a wrong side shows
            num_hidden_layers=4,
            head_dim=24,
            num_local_experts=6,
            num_experts_per_tok=2,
            sliding_window=5,
            swiglu_limit=0.3,  # so small that it matters
            max_position_embeddings=128,
            rope_parameters=_YARN_OSS,
        ),
        window=5,
        by_kind=True,
    ),
}


def _changed(name: str, *, window: int | None = None, **settings: Any) -> Recipe:
    recipe = _TINY[name]
    return recipe._replace(settings=recipe.settings | settings, window=window)


_WINDOW = {"use_sliding_window": True, "sliding_window": 5}
_BIASES = {"attention_bias": True}
# Further values of each key, several in one model if they are independent.
_VARIANTS = {
    "gpt2_scaled_by_layer": _changed("gpt2", scale_attn_by_inverse_layer_idx=True),
    "gpt2_untied_and_scaled_by_layer_alone": _changed(
        "gpt2",
        tie_word_embeddings=False,
        scale_attn_weights=False,
        scale_attn_by_inverse_layer_idx=True,
        reorder_and_upcast_attn=True,
    ),
    # Heads do not fill the width, and share keys.
    "olmo2_wide": _changed("olmo2", head_dim=24, num_key_value_heads=2, **_BIASES),
    # A RoPE with a default scaling, and no window.
    "gpt_oss_plain": _changed(
        "gpt_oss",
        rope_parameters=dict(rope_type="default", rope_theta=150000.0),
        layer_types=[_FULL] * 4,
        sliding_window=128,
        attention_bias=False,
    ),
    "smollm3_nope": _changed("smollm3", no_rope_layers=[0] * 4, mlp_bias=True, **_BIASES),
    "smollm3_window": _changed("smollm3", window=5, **_WINDOW),
    "qwen2_late_window": _changed("qwen2", window=5, max_window_layers=2, **_WINDOW),
    # The window would begin after the last layer.
    "qwen2_no_window": _changed("qwen2", max_window_layers=3, **_WINDOW),
    "qwen3_window": _changed(
        "qwen3", window=5, layer_types=[_SLIDING, _FULL, _SLIDING], **_BIASES, **_WINDOW
    ),
    "qwen3_moe_window": _changed("qwen3_moe", window=5, **_BIASES, **_WINDOW),
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
    "deepseek_v3_biases": _changed("deepseek_v3", **_BIASES),
    "gemma2_capped_logits": _changed("gemma2", window=5, attn_logit_softcapping=None, **_BIASES),
    "gemma2_capped_scores": _changed("gemma2", window=5, final_logit_softcapping=None),
    "gemma3_capped_logits": _changed("gemma3", window=5, final_logit_softcapping=3.0, **_BIASES),
}
RECIPES = _TINY | _VARIANTS

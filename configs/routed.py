"""Further families with mixtures of experts, by what their routers and attention add."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import fiddle as fdl
from torch import nn

from fidgpt import fiddlers
from fidgpt import model as lm
from fidgpt.configs import deepseek, deepseek3, lfm2, qwen3_moe
from fidgpt.configs.decoder import decoder
from fidgpt.configs.deepseek import (
    dense_first,
    mix,
    mixed_layers,
    mixture_of,
    mlp_types_of,
    shared_width,
    use_sigmoids,
)
from fidgpt.configs.hub import (
    EXPERTS,
    LAYER,
    MIXTURE,
    QK_NORMS,
    SELECTION_BIAS,
    SETTINGS,
    SHARED_SIZES,
    SILU,
    TENSORS,
    WINDOWS,
    AsRow,
    Family,
    Form,
    Joined,
    Stacked,
    Tensors,
    Transposed,
    in_layers,
    shared_as,
    with_adjacent_pairs,
    without,
)
from fidgpt.configs.mixtures import sigmoid_mixture
from fidgpt.configs.near_llama import HUNYUAN, hunyuan
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, SLIDING, rotate_in_windows_only, window_of_rotated
from fidgpt.graph import find, swap_all
from fidgpt.tags import HiddenDim
from fidgpt.train import Trainer


@variant_of(decoder, tied=True, theta=500_000.0)
def ernie4_5_moe(
    cfg: fdl.Config[Trainer],
    *,
    num_layers: int,
    expert_ffn_dim: int = 1536,
    num_experts: int = 64,
    num_shared: int = 2,
    top_k: int = 6,
    every: int = 1,
    first: int = 1,
    last: int = -1,
) -> None:
    """A decoder with mixtures in each `every`-th layer from `first` to `last`, chosen by a bias.

    The choice is by the scores of a softmax and a bias that balances the load.
    """
    layers = range(num_layers)
    last = num_layers - 1 if last == -1 else last
    dense = [i for i in layers if not first <= i <= last]
    sizes = (expert_ffn_dim, num_experts, top_k, True)
    qwen3_moe.mix_layers(cfg, num_layers, every, dense, *sizes)
    fiddlers.use_loss_free_balancing(cfg)
    if num_shared:
        fiddlers.use_shared_expert(cfg, ffn_dim=num_shared * expert_ffn_dim)


def _distance(model: Any) -> int:
    layers = mixed_layers(model)
    return layers[1] - layers[0] if len(layers) > 1 else 1


ERNIE_MOE = Family(
    model_type="ernie4_5_moe",
    architecture="Ernie4_5_MoeForCausalLM",
    config=ernie4_5_moe,
    settings={**without(SETTINGS, "head_dim"), "expert_ffn_dim": "moe_intermediate_size"}
    | {"num_experts": "moe_num_experts", "num_shared": "moe_num_shared_experts", "top_k": "moe_k"}
    | {"every": "moe_layer_interval", "first": "moe_layer_start_index"}
    | {"last": "moe_layer_end_index"},
    tensors=with_adjacent_pairs(
        {**TENSORS, **EXPERTS, **deepseek.SHARED}
        | {SELECTION_BIAS: AsRow(f"{LAYER}.mlp.moe_statics.e_score_correction_bias")}
    ),
    fixed={**SILU, "use_bias": (False,)},
    defaults={"tie_word_embeddings": True, "rope_theta": 500_000.0, "num_key_value_heads": 4},
    aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    readings={"every": _distance, "first": lambda model: next(iter(mixed_layers(model)), 1)}
    | {"last": lambda model: mixed_layers(model)[-1]},
    known=("moe_norm_min", "head_dim"),
    ignored=("model.mtp_*",),
)


@variant_of(hunyuan)
def hunyuan_moe(
    cfg: fdl.Config[Trainer], *, num_experts: int = 1, top_k: int | Sequence[int] = 1
) -> None:
    """Hunyuan with mixtures of experts, and one for all tokens.

    Raises:
      ValueError: `top_k`, which may be that of each layer, differs between layers.
    """
    values = {top_k} if isinstance(top_k, int) else {*top_k}
    if len(values) > 1:
        raise ValueError(f"{top_k=} must be the same in all layers.")
    fiddlers.use_moe(cfg, num_experts=num_experts, top_k=values.pop())
    fiddlers.use_shared_expert(cfg)


HUNYUAN_MOE = replace(
    HUNYUAN,
    model_type="hunyuan_v1_moe",
    architecture="HunYuanMoEV1ForCausalLM",
    config=hunyuan_moe,
    settings={**HUNYUAN.settings, "num_experts": "num_experts", "top_k": "moe_topk"},
    tensors={**cast(Tensors, HUNYUAN.tensors), **EXPERTS, **shared_as("mlp.shared_mlp")}
    | {"blocks.*.mlp.router": f"{LAYER}.mlp.gate.wg"},
    fixed={**HUNYUAN.fixed, "use_mixed_mlp_moe": (True,)},
    aliases={"num_experts_per_tok": "moe_topk"},
    known=("moe_intermediate_size", "moe_layer_num_skipped", "num_shared_expert"),
)
_ROUTER = {
    "blocks.*.mlp.router": f"{LAYER}.mlp.router.gate",
    SELECTION_BIAS: f"{LAYER}.mlp.expert_bias",
}


@variant_of(sigmoid_mixture, qk_norm=True)
def hy3(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with QK-norm and the mixtures of DeepSeek V3."""


HY3 = Family(
    model_type="hy_v3",
    architecture="HYV3ForCausalLM",
    config=hy3,
    settings={**SETTINGS, **SHARED_SIZES, "attention_bias": "attention_bias"}
    | {"mlp_types": "mlp_layer_types", "route_scale": "router_scaling_factor"},
    tensors={**TENSORS, **QK_NORMS, **EXPERTS, **shared_as("mlp.shared_mlp")} | _ROUTER,
    fixed={**SILU, "mlp_bias": (False,), "qk_norm": (True,)},
    defaults={
        "rope_theta": 11_158_840.0,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
        "mlp_layer_types": dense_first,
    },
    readings={"mlp_types": mlp_types_of},
    known=("enable_moe_fp32_combine",),  # precision alone
    ignored=("model.layers.80.*",),
)


@variant_of(decoder, window=513, layer_types=(*[SLIDING] * 4, FULL), eps=1e-6)
def kolibri1(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    window: int | None,
    expert_ffn_dim: int = 512,
    shared_ffn_dim: int = 512,
    num_experts: int = 384,
    top_k: int = 6,
    normalize: bool = False,
) -> None:
    """A decoder with QK-norm, norms around both branches, and mixtures chosen by biased logits.

    Layers with a window alone have RoPE.
    """
    fiddlers.use_qk_norm(cfg, eps=eps)
    mix(cfg, num_experts, top_k, 0, expert_ffn_dim, 1, normalize, 1.0)
    fiddlers.use_shared_expert(cfg, ffn_dim=shared_ffn_dim)
    use_sigmoids(cfg)
    swap_all(cfg.model, lm.SigmoidRouter, by=lm.LogitBiasRouter)
    fiddlers.use_sandwich_norm(cfg)
    rotate_in_windows_only(cfg, window)


KOLIBRI = Family(
    model_type="kolibri1",
    architecture="Kolibri1ForCausalLM",
    config=kolibri1,
    settings={**SETTINGS, **WINDOWS, **without(MIXTURE, "every", "dense_layers")}
    | {"shared_ffn_dim": "shared_expert_intermediate_size"},
    tensors={**TENSORS, **QK_NORMS, **EXPERTS, **deepseek.SHARED}
    | {SELECTION_BIAS: f"{LAYER}.moe.router.expert_bias"}
    | {"blocks.*.attention_out_norm": f"{LAYER}.post_attn_norm"}
    | {"blocks.*.mlp_out_norm": f"{LAYER}.post_ffn_norm"},
    fixed=SILU,
    defaults={"rms_norm_eps": 1e-6, "head_dim": 128, "num_key_value_heads": 4}
    | {"sliding_window": 513, "norm_topk_prob": False}
    | {"intermediate_size": lambda found: found["moe_intermediate_size"]}
    | {"layer_types": [*[SLIDING] * 4, FULL]},
    readings={"window": window_of_rotated, "shared_ffn_dim": shared_width},
)


@variant_of(sigmoid_mixture, window=1024, layer_types=(*[SLIDING] * 3, FULL), qk_norm=True)
def afmoe(cfg: fdl.Config[Trainer], *, window: int | None, scaled: bool = False) -> None:
    """A decoder with QK-norm, output gates, norms around both branches, and V3's mixtures.

    Layers with a window alone have RoPE; if `scaled`, embeddings are times the root of the width.
    """
    for attention in find(cfg.model, lm.Attention):
        attention.output_gate = fdl.Partial(lm.OutputGate)
    fiddlers.use_sandwich_norm(cfg)
    rotate_in_windows_only(cfg, window)
    if scaled:
        cfg.model.embedding.scale = fdl.Config(lm.root_of_width, hidden_dim=HiddenDim.new())


_SANDWICH = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
} | {"mlp_norm": "pre_mlp_layernorm", "mlp_out_norm": "post_mlp_layernorm"}
AFMOE = Family(
    model_type="afmoe",
    architecture="AfmoeForCausalLM",
    config=afmoe,
    settings={**SETTINGS, **WINDOWS, **SHARED_SIZES, "attention_bias": "attention_bias"}
    | {"first_dense": "num_dense_layers", "route_scale": "route_scale", "scaled": "mup_enabled"},
    tensors={**TENSORS, **QK_NORMS, **EXPERTS, **deepseek.SHARED, **in_layers(LAYER, _SANDWICH)}
    | {"blocks.*.attention.output_gate.project": f"{LAYER}.self_attn.gate_proj"}
    | _ROUTER,
    fixed={**SILU, "score_func": ("sigmoid",), "route_norm": (True,), "n_group": (1, None)},
    defaults={
        "head_dim": 128,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "num_shared_experts": 2,
        "sliding_window": 1024,
        "moe_intermediate_size": 1408,
        "layer_types": lambda found: [
            SLIDING if (i + 1) % (found.get("global_attn_every_n_layers") or 4) else FULL
            for i in range(found["num_hidden_layers"])
        ],
    },
    readings={"window": window_of_rotated, "scaled": lambda model: model.embedding.scale != 1.0},
    known=(
        *("global_attn_every_n_layers", "topk_group", "num_expert_groups", "num_limited_groups"),
        *("load_balance_coeff", "use_grouped_mm"),
    ),
)


@variant_of(lfm2.lfm2, adjusts=False)
def lfm2_moe(
    cfg: fdl.Config[Trainer],
    *,
    expert_ffn_dim: int = 1792,
    num_experts: int = 32,
    top_k: int = 4,
    first_dense: int = 2,
    normalize: bool = True,
    route_scale: float = 1.0,
    biased: bool = True,
) -> None:
    """LFM2 with mixtures of experts in all layers but the first ones.

    Sigmoids score experts; if `biased`, with a bias in the choice that balances their load.
    """
    mix(cfg, num_experts, top_k, first_dense, expert_ffn_dim, 0, normalize, route_scale)
    fiddlers.use_sigmoid_router(cfg)
    if biased:
        fiddlers.use_loss_free_balancing(cfg)


_FEED_FORWARD = f"{LAYER}.feed_forward"


def _lfm2_tensors(settings: Mapping[str, Any]) -> dict[str, str | Form]:
    names = {"gate": "w1", "up": "w3", "down": "w2"}
    return {
        **cast(Any, lfm2.HUB.tensors)(settings),
        **{
            f"blocks.*.mlp.experts.{path}": Stacked(
                f"{_FEED_FORWARD}.experts.{{expert}}.{name}.weight"
            )
            for path, name in names.items()
        },
        "blocks.*.mlp.router": f"{_FEED_FORWARD}.gate",
        SELECTION_BIAS: f"{_FEED_FORWARD}.expert_bias",
    }


LFM2_MOE = Family(
    model_type="lfm2_moe",
    architecture="Lfm2MoeForCausalLM",
    config=lfm2_moe,
    settings={**without(lfm2.HUB.settings, "adjusts", "multiplier", "multiple_of")}
    | {"expert_ffn_dim": "moe_intermediate_size", "num_experts": "num_experts"}
    | {"top_k": "num_experts_per_tok", "first_dense": "num_dense_layers"}
    | {"normalize": "norm_topk_prob", "route_scale": "routed_scaling_factor"}
    | {"biased": "use_expert_bias"},
    tensors=_lfm2_tensors,
    defaults=lfm2.HUB.defaults,
    readings={
        **{name: one for name, one in lfm2.HUB.readings.items() if name in lfm2.HUB.settings},
        "biased": lambda model: mixture_of(model).router.selection_bias is not None,
    },
    aliases={"tie_embedding": "tie_word_embeddings"},
    known=lfm2.HUB.known,
)


@variant_of(decoder, eps=1e-6)
def aria(
    cfg: fdl.Config[Trainer],
    *,
    ffn_dim: int,
    num_experts: int = 8,
    top_k: int = 2,
    num_shared: int = 2,
) -> None:
    """A decoder with mixtures of experts, and as wide as `num_shared` of them for all tokens."""
    fiddlers.use_moe(cfg, num_experts=num_experts, top_k=top_k)
    fiddlers.use_shared_expert(cfg, ffn_dim=num_shared * ffn_dim)


_FIRST = f"{LAYER}.mlp.experts.fc1.weight"
ARIA = Family(
    model_type="aria_text",
    architecture="AriaTextForCausalLM",
    config=aria,
    settings={**SETTINGS, "attention_bias": "attention_bias", "num_experts": "moe_num_experts"}
    | {"top_k": "moe_topk", "num_shared": "moe_num_shared_experts"},
    tensors={**TENSORS, **deepseek.SHARED, "blocks.*.mlp.router": f"{LAYER}.mlp.router"}
    | {"blocks.*.mlp.experts.gate": Transposed(Joined(_FIRST, 0, 2))}
    | {"blocks.*.mlp.experts.up": Transposed(Joined(_FIRST, 1, 2))}
    | {"blocks.*.mlp.experts.down": Transposed(f"{LAYER}.mlp.experts.fc2.weight")},
    fixed={**SILU, "mlp_bias": (False,)},
    defaults={"rms_norm_eps": 1e-6},
    aliases={"num_experts_per_tok": "moe_topk"},
    whole_heads=True,
)


@variant_of(decoder, eps=1e-6)
def flint(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    num_layers: int,
    window: int | None,
    expert_ffn_dim: int = 512,
    shared_ffn_dim: int = 1024,
    num_experts: int = 256,
    top_k: int = 6,
    normalize: bool = True,
    every: int = 1,
    dense_layers: Sequence[int] = (0, 1),
) -> None:
    """A decoder with QK-norm, sinks and sigmoid routers; layers with a window alone have RoPE."""
    fiddlers.use_qk_norm(cfg, eps=eps)
    fiddlers.use_sinks(cfg)
    rotate_in_windows_only(cfg, window)
    sizes = (expert_ffn_dim, num_experts, top_k, normalize)
    qwen3_moe.mix_layers(cfg, num_layers, every, dense_layers, *sizes)
    fiddlers.use_sigmoid_router(cfg)
    fiddlers.use_shared_expert(cfg, ffn_dim=shared_ffn_dim)


def _flint_layers(found: Mapping[str, Any]) -> list[str]:
    last = found["num_hidden_layers"] - 1
    return [FULL if i < 2 or i % 4 == 1 or i == last else SLIDING for i in range(last + 1)]


FLINT = Family(
    model_type="flint",
    architecture="FlintForCausalLM",
    config=flint,
    settings={**SETTINGS, **WINDOWS, **MIXTURE, "attention_bias": "attention_bias"}
    | {"shared_ffn_dim": "shared_expert_intermediate_size"},
    tensors={**TENSORS, **QK_NORMS, **EXPERTS, **shared_as("mlp.shared_expert")}
    | {"blocks.*.attention.sinks": f"{LAYER}.self_attn.softmax_offset"},
    fixed=SILU,
    defaults={"rms_norm_eps": 1e-6, "head_dim": 128, "num_key_value_heads": 4}
    | {"sliding_window": 513, "layer_types": _flint_layers},
    readings={**qwen3_moe.HUB.readings, "window": window_of_rotated}
    | {"shared_ffn_dim": shared_width},
)


@variant_of(deepseek3.v3, first_dense=1)
def axk1(cfg: fdl.Config[Trainer]) -> None:
    """DeepSeek V3 with a norm after each mixture."""
    fiddlers.use_sandwich_norm(cfg)
    for block in find(cfg.model, lm.SandwichBlock):
        block.attention_out_norm = fdl.ArgFactory(nn.Identity)
    for block in getattr(cfg.model, "first_blocks", ()):
        block.mlp_out_norm = fdl.ArgFactory(nn.Identity)


def _axk1_tensors(settings: Mapping[str, Any]) -> dict[str, Any]:
    norm = {"blocks.*.mlp_out_norm": f"{LAYER}.post_mlp_layernorm"}
    return {**deepseek.tensors(settings), **norm}


AXK1 = Family(
    model_type="axk1",
    architecture="AXK1ForCausalLM",
    config=axk1,
    settings={**without(deepseek.SETTINGS, "first_dense"), "mlp_types": "mlp_layer_types"}
    | {"normalize": "norm_topk_prob"},
    tensors=_axk1_tensors,
    fixed={**SILU, "rope_interleave": (True,), "moe_layer_freq": (1,)},
    defaults={
        "n_routed_experts": 192,
        "mlp_layer_types": lambda found: dense_first(found, found.get("first_k_dense_replace", 1)),
    },
    readings={"mlp_types": mlp_types_of},
    known=(*deepseek.KNOWN, "first_k_dense_replace", "topk_method", "scoring_func"),
    ignored=("*.mlp.post_mlp_layernorm.*",),
)

"""Further families with mixtures of experts, by what their routers and attention add."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import fiddle as fdl
from torch import nn
from torch.nn import functional as F

from fidgpt import fiddlers
from fidgpt import model as lm
from fidgpt.configs import deepseek, deepseek3, lfm2, mixtral, qwen3_moe
from fidgpt.configs.cohere import COHERE2, cohere2
from fidgpt.configs.decoder import decoder
from fidgpt.configs.deepseek import first_dense_of, mix, mlp_types_of, use_sigmoids
from fidgpt.configs.hub import (
    EXPERTS,
    MIXTURE,
    QK_NORMS,
    ROTARY,
    SETTINGS,
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
    with_adjacent_pairs,
    without,
)
from fidgpt.configs.mixtures import sigmoid_mixture
from fidgpt.configs.near_llama import HUNYUAN, hunyuan
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import (
    FULL,
    SLIDING,
    rotate_in_windows_by,
    rotate_in_windows_only,
    shortest_period,
    theta_in_windows,
    window_of_rotated,
)
from fidgpt.fiddlers.patterns import repeated
from fidgpt.graph import find, swap_all, swapped
from fidgpt.tags import HeadDim, HiddenDim
from fidgpt.train import Trainer

_LAYER = "model.layers.*"
_SILU = {"hidden_act": ("silu",)}
_BIAS = "blocks.*.mlp.router.selection_bias.bias"
CHUNKED = "chunked_attention"  # a kind of layers in config.json
_SHARED_SIZES: Mapping[str, str] = {
    "expert_ffn_dim": "moe_intermediate_size",
    "num_experts": "num_experts",
    "num_shared": "num_shared_experts",
    "top_k": "num_experts_per_tok",
}


def _shared_as(name: str) -> dict[str, str]:
    """Return the tensors of experts for all tokens, by their name in a layer."""
    paths = ("gate", "up", "down")
    return {f"blocks.*.mlp.shared.{path}": f"{_LAYER}.{name}.{path}_proj" for path in paths}


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


def _mixed_layers(model: Any) -> list[int]:
    return [i for i, block in enumerate(model.blocks) if hasattr(block.mlp, "experts")]


def _distance(model: Any) -> int:
    layers = _mixed_layers(model)
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
        | {_BIAS: AsRow(f"{_LAYER}.mlp.moe_statics.e_score_correction_bias")}
    ),
    fixed={**_SILU, "use_bias": (False,)},
    defaults={"tie_word_embeddings": True, "rope_theta": 500_000.0, "num_key_value_heads": 4},
    aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    readings={"every": _distance, "first": lambda model: next(iter(_mixed_layers(model)), 1)}
    | {"last": lambda model: _mixed_layers(model)[-1]},
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


HUNYUAN_MOE = Family(
    model_type="hunyuan_v1_moe",
    architecture="HunYuanMoEV1ForCausalLM",
    config=hunyuan_moe,
    settings={**HUNYUAN.settings, "num_experts": "num_experts", "top_k": "moe_topk"},
    tensors={**cast(Tensors, HUNYUAN.tensors), **EXPERTS, **_shared_as("mlp.shared_mlp")}
    | {"blocks.*.mlp.router": f"{_LAYER}.mlp.gate.wg"},
    fixed={**HUNYUAN.fixed, "use_mixed_mlp_moe": (True,)},
    aliases={"num_experts_per_tok": "moe_topk"},
    scalings=HUNYUAN.scalings,
    known=("moe_intermediate_size", "moe_layer_num_skipped", "num_shared_expert"),
)


@variant_of(sigmoid_mixture, qk_norm=True)
def hy3(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with QK-norm and the mixtures of DeepSeek V3."""


HY3 = Family(
    model_type="hy_v3",
    architecture="HYV3ForCausalLM",
    config=hy3,
    settings={**SETTINGS, **_SHARED_SIZES, "attention_bias": "attention_bias"}
    | {"mlp_types": "mlp_layer_types", "route_scale": "router_scaling_factor"},
    tensors={**TENSORS, **QK_NORMS, **EXPERTS, **_shared_as("mlp.shared_mlp")}
    | {"blocks.*.mlp.router": f"{_LAYER}.mlp.router.gate", _BIAS: f"{_LAYER}.mlp.expert_bias"},
    fixed={**_SILU, "mlp_bias": (False,), "qk_norm": (True,)},
    defaults={
        "rope_theta": 11_158_840.0,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
        "mlp_layer_types": lambda found: [
            deepseek.DENSE if i == 0 else deepseek.SPARSE for i in range(found["num_hidden_layers"])
        ],
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
    | {_BIAS: f"{_LAYER}.moe.router.expert_bias"}
    | {"blocks.*.attention_out_norm": f"{_LAYER}.post_attn_norm"}
    | {"blocks.*.mlp_out_norm": f"{_LAYER}.post_ffn_norm"},
    fixed=_SILU,
    defaults={"rms_norm_eps": 1e-6, "head_dim": 128, "num_key_value_heads": 4}
    | {"sliding_window": 513, "norm_topk_prob": False}
    | {"intermediate_size": lambda found: found["moe_intermediate_size"]}
    | {"layer_types": [*[SLIDING] * 4, FULL]},
    readings={"window": window_of_rotated, "shared_ffn_dim": lambda model: _shared(model).ffn_dim},
)


def _shared(model: Any) -> Any:
    return next(block.mlp for block in model.blocks if hasattr(block.mlp, "experts")).shared


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
    settings={**SETTINGS, **WINDOWS, **_SHARED_SIZES, "attention_bias": "attention_bias"}
    | {"first_dense": "num_dense_layers", "route_scale": "route_scale", "scaled": "mup_enabled"},
    tensors={**TENSORS, **QK_NORMS, **EXPERTS, **deepseek.SHARED, **in_layers(_LAYER, _SANDWICH)}
    | {"blocks.*.attention.output_gate.project": f"{_LAYER}.self_attn.gate_proj"}
    | {"blocks.*.mlp.router": f"{_LAYER}.mlp.router.gate", _BIAS: f"{_LAYER}.mlp.expert_bias"},
    fixed={**_SILU, "score_func": ("sigmoid",), "route_norm": (True,), "n_group": (1, None)},
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


_FEED_FORWARD = f"{_LAYER}.feed_forward"


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
        _BIAS: f"{_FEED_FORWARD}.expert_bias",
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
        "biased": lambda model: next(
            block.mlp.router.selection_bias is not None
            for block in model.blocks
            if hasattr(block.mlp, "experts")
        ),
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


_FIRST = f"{_LAYER}.mlp.experts.fc1.weight"
ARIA = Family(
    model_type="aria_text",
    architecture="AriaTextForCausalLM",
    config=aria,
    settings={**SETTINGS, "attention_bias": "attention_bias", "num_experts": "moe_num_experts"}
    | {"top_k": "moe_topk", "num_shared": "moe_num_shared_experts"},
    tensors={**TENSORS, **deepseek.SHARED, "blocks.*.mlp.router": f"{_LAYER}.mlp.router"}
    | {"blocks.*.mlp.experts.gate": Transposed(Joined(_FIRST, 0, 2))}
    | {"blocks.*.mlp.experts.up": Transposed(Joined(_FIRST, 1, 2))}
    | {"blocks.*.mlp.experts.down": Transposed(f"{_LAYER}.mlp.experts.fc2.weight")},
    fixed={**_SILU, "mlp_bias": (False,)},
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
    tensors={**TENSORS, **QK_NORMS, **EXPERTS, **_shared_as("mlp.shared_expert")}
    | {"blocks.*.attention.sinks": f"{_LAYER}.self_attn.softmax_offset"},
    fixed=_SILU,
    defaults={"rms_norm_eps": 1e-6, "head_dim": 128, "num_key_value_heads": 4}
    | {"sliding_window": 513, "layer_types": _flint_layers},
    readings={**qwen3_moe.HUB.readings, "window": window_of_rotated}
    | {"shared_ffn_dim": lambda model: _shared(model).ffn_dim},
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
    norm = {"blocks.*.mlp_out_norm": f"{_LAYER}.post_mlp_layernorm"}
    return {**deepseek.tensors(settings), **norm}


AXK1 = Family(
    model_type="axk1",
    architecture="AXK1ForCausalLM",
    config=axk1,
    settings={**without(deepseek.SETTINGS, "first_dense"), "mlp_types": "mlp_layer_types"}
    | {"normalize": "norm_topk_prob"},
    tensors=_axk1_tensors,
    fixed={**_SILU, "rope_interleave": (True,), "moe_layer_freq": (1,)},
    defaults={
        "n_routed_experts": 192,
        "mlp_layer_types": lambda found: [
            deepseek.DENSE if i < found.get("first_k_dense_replace", 1) else deepseek.SPARSE
            for i in range(found["num_hidden_layers"])
        ],
    },
    readings={"mlp_types": mlp_types_of},
    known=(*deepseek.KNOWN, "first_k_dense_replace", "topk_method", "scoring_func"),
    ignored=("*.mlp.post_mlp_layernorm.*",),
)


@variant_of(decoder, theta=500_000.0)
def llama4(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    num_layers: int,
    expert_ffn_dim: int,
    num_experts: int = 16,
    top_k: int = 1,
    mixed_layers: Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
    rotated: Sequence[int] = (),
    bare: int = 4,
    chunk: int = 8192,
    qk_norm: bool = True,
    sharpens: bool = True,
    strength: float = 0.1,
    span: int = 8192,
) -> None:
    """A decoder with RoPE in chunks of the text, and neither in every `bare`-th layer.

    Layers with RoPE normalize queries and keys after it if `qk_norm`; in those without, attention
    gets sharper with the position if `sharpens`. The weights of experts are on their inputs.

    Args:
      cfg: the graph to change.
      eps: eps of the norms of queries and keys.
      num_layers: number of layers.
      expert_ffn_dim: width of an expert, and of the one for all tokens.
      num_experts: experts per layer.
      top_k: experts per token.
      mixed_layers: layers with experts; None for all.
      kinds: layers whose attention is in chunks, by their names in config.json; defaults to those
        with RoPE.
      rotated: 1 for each layer with RoPE, else 0; defaults to all but every `bare`-th.
      bare: see `rotated`.
      chunk: tokens of a chunk.
      qk_norm: see above.
      sharpens: see above.
      strength: of the sharpening; see `Tempered`.
      span: positions of one factor of it.

    Raises:
      ValueError: a kind is unknown.
    """
    rotated = rotated or [int((i + 1) % bare != 0) for i in range(num_layers)]
    kinds = kinds or [CHUNKED if one else FULL for one in rotated]
    if unknown := {*kinds} - {CHUNKED, FULL}:
        raise ValueError(f"layer_types has {', '.join(sorted(unknown))}; use {CHUNKED} and {FULL}.")
    pattern = shortest_period([*zip(rotated, kinds, strict=True)])
    cfg.model.blocks = repeated(cfg.model.blocks, len(pattern))
    for block, (is_rotated, kind) in zip(cfg.model.blocks, pattern, strict=True):
        attention = block.attention
        if kind == CHUNKED:
            attention.mask = fdl.Config(lm.And, (lm.causal, fdl.Config(lm.Chunk, chunk)))
        if is_rotated and qk_norm:
            attention = block.attention = swapped(attention, lm.LateNormAttention)
            for name in ("query_norm", "key_norm"):
                norm = fdl.ArgFactory(lm.WeightlessRMSNorm, hidden_dim=HeadDim.new(), eps=eps)
                setattr(attention, name, norm)
        if not is_rotated:
            attention.rope = None
        if not is_rotated and sharpens:
            attention.rope = fdl.Config(
                lm.Tempered, rotation=None, strength=strength, span=span, offset=1
            )
    dense = () if mixed_layers is None else {*range(num_layers)} - {*mixed_layers}
    sizes = (expert_ffn_dim, num_experts, top_k, False)
    qwen3_moe.mix_layers(cfg, num_layers, 1, sorted(dense), *sizes)
    fiddlers.use_sigmoid_router(cfg)
    fiddlers.use_shared_expert(cfg)
    for moe in find(cfg.model, lm.MoE):
        moe.dispatch = lm.weighted_inputs


def _ropes(model: Any) -> list[Any]:
    return [block.attention.rope for block in model.blocks]


def _chunk(model: Any) -> int:
    masks: list[Any] = [block.attention.mask for block in model.blocks]
    chunks: list[Any] = [one.masks[1] for one in masks if isinstance(one, lm.And)]
    return next(iter(chunks)).size


def _tempered(name: str) -> Callable[[Any], Any]:
    return lambda model: next(
        getattr(one, name) for one in _ropes(model) if isinstance(one, lm.Tempered)
    )


_EXPERT_ROWS = f"{_FEED_FORWARD}.experts.gate_up_proj"
LLAMA4 = Family(
    model_type="llama4_text",
    architecture="Llama4ForCausalLM",
    config=llama4,
    settings={**SETTINGS, "attention_bias": "attention_bias", "ffn_dim": "intermediate_size_mlp"}
    | {"expert_ffn_dim": "intermediate_size", "num_experts": "num_local_experts"}
    | {"top_k": "num_experts_per_tok", "mixed_layers": "moe_layers", "kinds": "layer_types"}
    | {"rotated": "no_rope_layers", "bare": "no_rope_layer_interval"}
    | {"chunk": "attention_chunk_size", "qk_norm": "use_qk_norm"}
    | {"sharpens": "attn_temperature_tuning", "strength": "attn_scale", "span": "floor_scale"},
    tensors=with_adjacent_pairs(
        {
            **TENSORS,
            **_shared_as("feed_forward.shared_expert"),
            **in_layers(
                _FEED_FORWARD,
                {f"mlp.{path}": f"{path}_proj" for path in ("gate", "up", "down")}
                | {"mlp.router": "router"},
            ),
            "blocks.*.mlp.experts.gate": Transposed(Joined(_EXPERT_ROWS, 0, 2)),
            "blocks.*.mlp.experts.up": Transposed(Joined(_EXPERT_ROWS, 1, 2)),
            "blocks.*.mlp.experts.down": Transposed(f"{_FEED_FORWARD}.experts.down_proj"),
        }
    ),
    fixed=_SILU,
    defaults={"rope_theta": 500_000.0, "num_key_value_heads": 8, "head_dim": 128}
    | {"moe_layers": lambda found: _every(found, found.get("interleave_moe_layer_step", 1))},
    readings={
        "mixed_layers": _mixed_layers,
        "kinds": lambda model: [
            CHUNKED if isinstance(block.attention.mask, lm.And) else FULL for block in model.blocks
        ],
        "rotated": lambda model: [int(isinstance(one, lm.RoPE)) for one in _ropes(model)],
        "bare": lambda _: 4,
        "chunk": _chunk,
        "qk_norm": lambda model: any(block.attention.query_norm for block in model.blocks),
        "sharpens": lambda model: any(isinstance(one, lm.Tempered) for one in _ropes(model)),
        "strength": _tempered("strength"),
        "span": _tempered("span"),
    },
    known=("interleave_moe_layer_step", "for_llm_compressor"),
)


def _every(found: Mapping[str, Any], step: int) -> list[int]:
    return [*range(step - 1, found["num_hidden_layers"], step)]


@variant_of(mixtral.mixtral, theta=1e6)
def phimoe(
    cfg: fdl.Config[Trainer], *, eps: float, jitter: float = 0.01, logit_bias: bool = False
) -> None:
    """Mixtral with LayerNorm and the routers of SparseMixer; `logit_bias` adds one to logits."""
    fiddlers.use_layer_norm(cfg, eps=eps)
    for router in swap_all(cfg.model, lm.SoftmaxRouter, by=lm.SparseMixerRouter):
        router.tolerance = 2 * jitter
    if logit_bias:
        swap_all(cfg.model, lm.Unembedding, by=lm.BiasedUnembedding)


PHIMOE = Family(
    model_type="phimoe",
    architecture="PhimoeForCausalLM",
    config=phimoe,
    settings={**mixtral.HUB.settings, "attention_bias": "attention_bias"}
    | {"jitter": "router_jitter_noise", "logit_bias": "lm_head_bias"},
    tensors=mixtral.HUB.tensors,
    fixed=_SILU,
    defaults={"rope_theta": 1e6, "num_local_experts": 16, "num_key_value_heads": 8},
    readings={"jitter": lambda model: model.blocks[0].mlp.router.tolerance / 2}
    | {"logit_bias": lambda model: isinstance(model.unembedding, lm.BiasedUnembedding)},
    known=("input_jitter_noise",),
)


@variant_of(sigmoid_mixture, qk_norm=True, rotary_share=0.5, theta=500_000.0, window=512)
def laguna(
    cfg: fdl.Config[Trainer],
    *,
    num_heads: int,
    shared_ffn_dim: int = 512,
    gating: bool | str = True,
    heads: Sequence[int] = (),
    local_theta: float = 10_000.0,
) -> None:
    """A decoder with QK-norm, gates of heads by softplus, and V3's mixtures.

    Layers with a window have another RoPE, of whole heads.

    Raises:
      ValueError: layers have different numbers of heads.
    """
    if {*heads} - {num_heads}:
        raise ValueError(f"{heads=} must all be {num_heads=}.")
    fiddlers.use_shared_expert(cfg, ffn_dim=shared_ffn_dim)
    per_head = gating is True or gating == "per-head"
    for attention in find(cfg.model, lm.Attention):
        if gating:
            attention.output_gate = fdl.Partial(lm.OutputGate, activation=F.softplus)
            attention.output_gate.per_head = per_head
    rotate_in_windows_by(cfg, local_theta)


def _gating(model: Any) -> bool | str:
    gate = model.blocks[0].attention.output_gate
    return gate is not None and (True if gate.repeats > 1 else "per-element")


LAGUNA = Family(
    model_type="laguna",
    architecture="LagunaForCausalLM",
    config=laguna,
    settings={**SETTINGS, **WINDOWS, **ROTARY, **without(_SHARED_SIZES, "num_shared")}
    | {"attention_bias": "attention_bias", "mlp_types": "mlp_layer_types", "gating": "gating"}
    | {"shared_ffn_dim": "shared_expert_intermediate_size", "local_theta": "rope_local_base_freq"}
    | {"route_scale": "moe_routed_scaling_factor", "heads": "num_attention_heads_per_layer"}
    | {"num_shared": "num_shared_experts"},
    tensors={**TENSORS, **QK_NORMS, **EXPERTS, **_shared_as("mlp.shared_expert")}
    | {"blocks.*.attention.output_gate.project": f"{_LAYER}.self_attn.g_proj"}
    | {_BIAS: f"{_LAYER}.mlp.experts.e_score_correction_bias"},
    fixed={**_SILU, "moe_apply_router_weight_on_input": (False,)}
    | {"moe_router_logit_softcapping": (0.0,)},
    defaults={"num_key_value_heads": 8, "head_dim": 128, "sliding_window": 512}
    | {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
    | {"num_shared_experts": 1, "rms_norm_eps": 1e-6, "layer_types": [FULL]}
    | {
        "mlp_layer_types": lambda found: [
            deepseek.DENSE if i == 0 else deepseek.SPARSE for i in range(found["num_hidden_layers"])
        ]
    },
    readings={"mlp_types": mlp_types_of, "local_theta": theta_in_windows}
    | {"shared_ffn_dim": lambda model: _shared(model).ffn_dim, "num_shared": lambda _: 1}
    | {"gating": _gating}
    | {"heads": lambda model: [block.attention.num_heads for block in model.blocks]},
)


@variant_of(cohere2, eps=1e-5)
def cohere2_moe(
    cfg: fdl.Config[Trainer],
    *,
    num_experts: int = 8,
    top_k: int = 2,
    mlp_types: Sequence[str] | None = None,
    sigmoid: str = "softmax",
    normalize: bool = True,
) -> None:
    """Command R with windows and mixtures of experts.

    Raises:
      ValueError: the scores of experts are of another kind, or a layer is dense.
    """
    if sigmoid not in ("softmax", "sigmoid") or first_dense_of(mlp_types or ()):
        raise ValueError(f"{sigmoid=} must be softmax or sigmoid, and {mlp_types=} sparse.")
    fiddlers.use_moe(cfg, num_experts=num_experts, top_k=top_k)
    if sigmoid == "sigmoid":
        fiddlers.use_sigmoid_router(cfg)
    for router in find(cfg.model, lm.Router):
        router.normalize = normalize or sigmoid == "softmax"


COHERE2_MOE = replace(
    COHERE2,
    model_type="cohere2_moe",
    architecture="Cohere2MoeForCausalLM",
    config=cohere2_moe,
    settings={**COHERE2.settings, "num_experts": "num_experts", "top_k": "num_experts_per_tok"}
    | {"mlp_types": "mlp_layer_types", "sigmoid": "expert_selection_fn"}
    | {"normalize": "norm_topk_prob"},
    tensors=with_adjacent_pairs({**TENSORS, **EXPERTS}),
    fixed={**_SILU, "num_shared_experts": (0,), "rms_norm_eps": (None,)},
    defaults={**COHERE2.defaults, "head_dim": 128, "rope_theta": 10_000.0},
    readings={
        "mlp_types": mlp_types_of,
        "sigmoid": lambda model: (
            "sigmoid" if isinstance(model.blocks[0].mlp.router, lm.SigmoidRouter) else "softmax"
        ),
    },
    known=(
        *(*COHERE2.known, "shared_expert_combination_strategy", "prefix_dense_intermediate_size"),
        *("prefix_dense_sliding_window_pattern", "first_k_dense_replace"),
    ),
)

"""Further families with mixtures of experts, by what their routers and attention add."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import fiddle as fdl
from torch import nn

from fidgpt import fiddlers
from fidgpt import model as lm
from fidgpt.configs import deepseek3, lfm2, qwen3_moe
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.deepseek import (
    SHARED,
    dense_first,
    experts,
    listed_dense_first,
    mix,
    near_deepseek,
    use_sigmoids,
)
from fidgpt.configs.hub import (
    AS_EXPERTS,
    EXPERT_ROWS,
    EXPERTS,
    LAYER,
    QK_NORMS,
    SELECTION_BIAS,
    TENSORS,
    AsRow,
    Transposed,
    experts_as,
    in_layers,
    joined,
    shared_as,
    transposed,
    with_adjacent_pairs,
)
from fidgpt.configs.hybrids import periodic_kinds
from fidgpt.configs.mixtures import sigmoid_mixture
from fidgpt.configs.near_llama import HUNYUAN, hunyuan
from fidgpt.configs.readings import SPARSE, layers_with, mixture_of
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, SLIDING, rotate_in_windows_only, window_of_rotated
from fidgpt.graph import find, swap_all
from fidgpt.tags import HiddenDim
from fidgpt.train import Trainer


@variant_of(decoder, tied=True, theta=500_000.0, num_kv_heads=4)
def ernie4_5_moe(
    cfg: fdl.Config[Trainer],
    *,
    num_layers: int,
    expert_ffn_dim: int = 1536,
    num_experts: int = 64,
    num_shared: int = 2,
    top_k: int = 6,
    moe_layer_interval: int = 1,
    first_dense: int = 1,
    moe_layer_end_index: int = -1,
) -> None:
    """A decoder with mixtures in each `moe_layer_interval`-th layer behind the first and last ones.

    The choice of experts is by the scores of a softmax and a bias that balances the load.
    """
    last = num_layers - 1 if moe_layer_end_index == -1 else moe_layer_end_index
    dense = [i for i in range(num_layers) if not first_dense <= i <= last]
    sizes = (expert_ffn_dim, num_experts, top_k, True)
    qwen3_moe.mix_layers(cfg, num_layers, moe_layer_interval, dense, *sizes)
    fiddlers.use_loss_free_balancing(cfg)
    if num_shared:
        fiddlers.use_shared_expert(cfg, ffn_dim=num_shared * expert_ffn_dim)


def _distance(model: Any) -> int:
    layers = layers_with(model, SPARSE)
    return layers[1] - layers[0] if len(layers) > 1 else 1


_BIAS = AsRow(f"{LAYER}.mlp.moe_statics.e_score_correction_bias")
_COUNTS = {"num_experts": "moe_num_experts", "num_shared": "moe_num_shared_experts"}
ERNIE_MOE = family(
    "ernie4_5_moe",
    ernie4_5_moe,
    "expert_ffn_dim moe_layer_interval moe_layer_end_index",
    architecture="Ernie4_5_MoeForCausalLM",
    settings={"head_dim": ..., **_COUNTS, "top_k": "moe_k", "first_dense": "moe_layer_start_index"},
    tensors=with_adjacent_pairs({**TENSORS, **EXPERTS, **SHARED, SELECTION_BIAS: _BIAS}),
    fixed={"use_bias": (False,)},
    aliases={"num_experts": "moe_num_experts"},
    readings={"moe_layer_interval": _distance}
    | {"moe_layer_end_index": lambda model: layers_with(model, SPARSE)[-1]},
    known="moe_norm_min moe_gate head_dim",
)


@variant_of(hunyuan)
def hunyuan_moe(
    cfg: fdl.Config[Trainer], *, num_experts: int = 1, top_k: int | Sequence[int] = 1
) -> None:
    """Hunyuan with mixtures of experts, and one for all tokens.

    Raises:
      ValueError: `top_k`, which may list a value for each layer, differs between layers.
    """
    values = {top_k} if isinstance(top_k, int) else {*top_k}
    if len(values) > 1:
        raise ValueError(f"{top_k=} must be the same in all layers.")
    fiddlers.use_moe(cfg, num_experts=num_experts, top_k=values.pop())
    fiddlers.use_shared_expert(cfg)


HUNYUAN_MOE = HUNYUAN.near(
    "hunyuan_v1_moe",
    hunyuan_moe,
    "num_experts",
    architecture="HunYuanMoEV1ForCausalLM",
    settings={"top_k": "moe_topk"},
    tensors={**EXPERTS, **shared_as("mlp.shared_mlp")}
    | {"blocks.*.mlp.router": f"{LAYER}.mlp.gate.wg"},
    fixed={"use_mixed_mlp_moe": (True,)},
    known="moe_intermediate_size moe_layer_num_skipped num_shared_expert",
)
_ROUTER = {
    "blocks.*.mlp.router": f"{LAYER}.mlp.router.gate",
    SELECTION_BIAS: f"{LAYER}.mlp.expert_bias",
}


_HY3 = {"num_experts": 192, "num_shared": 1, "top_k": 8, "expert_ffn_dim": 1536}
_HY3 |= {"route_scale": 2.826, "theta": 11_158_840.0, "num_kv_heads": 8, "head_dim": 128}


@variant_of(sigmoid_mixture, **_HY3, qk_norm=True)
def hy3(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with QK-norm and the mixtures of DeepSeek V3."""


_SHARED_SIZES = "expert_ffn_dim num_experts num_shared top_k"  # as Hunyuan names them
HY3 = family(
    "hy_v3",
    hy3,
    f"{_SHARED_SIZES} attention_bias mlp_types",
    architecture="HYV3ForCausalLM",
    settings={"route_scale": "router_scaling_factor"},
    tensors={**QK_NORMS, **EXPERTS, **shared_as("mlp.shared_mlp")} | _ROUTER,
    fixed={"mlp_bias": (False,), "qk_norm": (True,)},
    defaults={"mlp_layer_types": dense_first},
    known=("enable_moe_fp32_combine",),  # precision alone
    ignored=("model.layers.80.*",),
)


_FOUR_TO_ONE = (*[SLIDING] * 4, FULL)


@variant_of(decoder, window=513, layer_types=_FOUR_TO_ONE, eps=1e-6, head_dim=128, num_kv_heads=4)
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


KOLIBRI = family(
    "kolibri1",
    kolibri1,
    "window layer_types expert_ffn_dim num_experts top_k normalize shared_ffn_dim",
    tensors={**QK_NORMS, **EXPERTS, **SHARED}
    | {SELECTION_BIAS: f"{LAYER}.moe.router.expert_bias"}
    | in_layers(LAYER, {"attention_out_norm": "post_attn_norm", "mlp_out_norm": "post_ffn_norm"}),
    defaults=AS_EXPERTS,
    readings={"window": window_of_rotated},
)


_AFMOE = {"num_experts": 64, "num_shared": 2, "top_k": 6, "expert_ffn_dim": 1408}
_AFMOE |= {"head_dim": 128, "window": 1024, "layer_types": (*[SLIDING] * 3, FULL)}


@variant_of(sigmoid_mixture, **_AFMOE, qk_norm=True)
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


_NAMES = {"attention_out_norm": "post_attention_layernorm", "mlp_norm": "pre_mlp_layernorm"}
_NAMES |= {"mlp_out_norm": "post_mlp_layernorm"}
_NAMES |= {"attention.output_gate.project": "self_attn.gate_proj"}
_EVERY = "global_attn_every_n_layers"
AFMOE = family(
    "afmoe",
    afmoe,
    f"window layer_types {_SHARED_SIZES} attention_bias",
    settings={"first_dense": "num_dense_layers", "route_scale": "route_scale"}
    | {"scaled": "mup_enabled"},
    tensors={**QK_NORMS, **EXPERTS, **SHARED, **_ROUTER, **in_layers(LAYER, _NAMES)},
    fixed={"score_func": ("sigmoid",), "route_norm": (True,), "n_group": (1, None)},
    defaults={"layer_types": partial(periodic_kinds, key=_EVERY, name=SLIDING)},
    readings={"window": window_of_rotated},
    known=f"{_EVERY} topk_group num_expert_groups num_limited_groups",
)


_LFM2 = {"num_experts": 32, "num_shared": 0, "top_k": 4, "expert_ffn_dim": 1792}


@variant_of(lfm2.lfm2, experts, **_LFM2, first_dense=2, normalize=True, adjusts=False)
def lfm2_moe(
    cfg: fdl.Config[Trainer], *, experts: Sequence[Any], use_expert_bias: bool = True
) -> None:
    """LFM2 with mixtures of experts in all layers but the first ones.

    Sigmoids score experts; if `use_expert_bias`, a bias of the choice balances their load.
    """
    mix(cfg, *experts)
    fiddlers.use_sigmoid_router(cfg)
    if use_expert_bias:
        fiddlers.use_loss_free_balancing(cfg)


_FEED_FORWARD = f"{LAYER}.feed_forward"
LFM2_MOE = lfm2.near_lfm2(
    "lfm2_moe",
    lfm2_moe,
    "expert_ffn_dim num_experts top_k normalize route_scale use_expert_bias",
    settings={"first_dense": "num_dense_layers"},
    tensors=lambda settings: {
        **lfm2.mixer_tensors(settings),
        **experts_as(_FEED_FORWARD, "w1", "w3", "w2"),
        "blocks.*.mlp.router": f"{_FEED_FORWARD}.gate",
        SELECTION_BIAS: f"{_FEED_FORWARD}.expert_bias",
    },
    readings={"use_expert_bias": lambda model: mixture_of(model).router.selection_bias is not None},
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


_MLP = f"{LAYER}.mlp"
ARIA = family(
    "aria_text",
    aria,
    "attention_bias",
    settings={**_COUNTS, "top_k": "moe_topk"},
    tensors={**SHARED, "blocks.*.mlp.router": f"{_MLP}.router"}
    | transposed(joined(EXPERT_ROWS, f"{_MLP}.experts.fc1.weight", of=2, dim=-1))
    | {"blocks.*.mlp.experts.down": Transposed(f"{_MLP}.experts.fc2.weight")},
    fixed={"mlp_bias": (False,)},
    whole_heads=True,
)


@variant_of(decoder, eps=1e-6, head_dim=128, num_kv_heads=4, window=513)
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


def _flint_layers(hub: Mapping[str, Any]) -> list[str]:
    last = hub["num_hidden_layers"] - 1
    return [FULL if i < 2 or i % 4 == 1 or i == last else SLIDING for i in range(last + 1)]


FLINT = family(
    "flint",
    flint,
    "window layer_types attention_bias shared_ffn_dim",
    settings=qwen3_moe.MIXTURE,
    tensors={**QK_NORMS, **EXPERTS, **shared_as("mlp.shared_expert")}
    | {"blocks.*.attention.sinks": f"{LAYER}.self_attn.softmax_offset"},
    defaults={"layer_types": _flint_layers},
    readings={"window": window_of_rotated},
)


@variant_of(deepseek3.v3, first_dense=1, num_experts=192)
def axk1(cfg: fdl.Config[Trainer]) -> None:
    """DeepSeek V3 with a norm after each mixture."""
    fiddlers.use_sandwich_norm(cfg)
    for block in find(cfg.model, lm.SandwichBlock):
        block.attention_out_norm = fdl.ArgFactory(nn.Identity)
    for block in getattr(cfg.model, "first_blocks", ()):
        block.mlp_out_norm = fdl.ArgFactory(nn.Identity)


AXK1 = near_deepseek(
    "axk1",
    axk1,
    "mlp_types normalize",
    architecture="AXK1ForCausalLM",
    settings={"first_dense": ...},
    tensors={"blocks.*.mlp_out_norm": f"{LAYER}.post_mlp_layernorm"},
    fixed={"rope_interleave": (True,)},
    defaults={"mlp_layer_types": listed_dense_first},
    known="first_k_dense_replace topk_method scoring_func",
)

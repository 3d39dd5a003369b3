"""Families with mixtures of experts, whose other parts are those of another family."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import fiddle as fdl

from fidgpt.configs import deepseek3, granite, mixtral, olmo2, qwen2, qwen3_moe
from fidgpt.configs.decoder import decoder
from fidgpt.configs.deepseek import (
    SHARED,
    SIGMOID_ROUTER,
    SPARSE,
    dense_first,
    first_dense_of,
    mix,
    mixture_of,
    mlp_types_of,
    use_sigmoids,
)
from fidgpt.configs.hub import (
    EXPERTS,
    LAYER,
    MIXTURE,
    QK_NORMS,
    ROTARY,
    SELECTION_BIAS,
    SETTINGS,
    SILU,
    TENSORS,
    WINDOWS,
    Family,
    Joined,
    Tensors,
    joined,
    without,
)
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import (
    FULL,
    PERIODS,
    periodic_layers,
    rotate_in_windows_by,
    rotate_in_windows_only,
    sliding_from,
    theta_in_windows,
    window_of_rotated,
)
from fidgpt.fiddlers import use_moe, use_qk_norm, use_shared_expert
from fidgpt.graph import find
from fidgpt.model import GatedShared, MoE, Router
from fidgpt.tags import HiddenDim
from fidgpt.train import Trainer


@variant_of(qwen2.qwen2)
def qwen2_moe(
    cfg: fdl.Config[Trainer],
    *,
    num_layers: int,
    expert_ffn_dim: int,
    shared_ffn_dim: int,
    num_experts: int = 60,
    top_k: int = 4,
    normalize: bool = False,
    every: int = 1,
    dense_layers: Sequence[int] = (),
) -> None:
    """Qwen 2 with mixtures of experts, and a gated expert for all tokens."""
    qwen3_moe.mix_layers(
        cfg, num_layers, every, dense_layers, expert_ffn_dim, num_experts, top_k, normalize
    )
    share_gated(cfg, shared_ffn_dim)


def share_gated(cfg: fdl.Config[Trainer], ffn_dim: int) -> None:
    """Add an expert for all tokens to each mixture, with a gate."""
    use_shared_expert(cfg, ffn_dim=ffn_dim)
    for moe in find(cfg.model, MoE):
        moe.shared = fdl.ArgFactory(GatedShared, hidden_dim=HiddenDim.new(), mlp=moe.shared)


GATED_SHARED: Mapping[str, str] = {
    "blocks.*.mlp.shared.gate": f"{LAYER}.mlp.shared_expert_gate",
    "blocks.*.mlp.shared.mlp.gate": f"{LAYER}.mlp.shared_expert.gate_proj",
    "blocks.*.mlp.shared.mlp.up": f"{LAYER}.mlp.shared_expert.up_proj",
    "blocks.*.mlp.shared.mlp.down": f"{LAYER}.mlp.shared_expert.down_proj",
}
QWEN2_MOE = Family(
    model_type="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    config=qwen2_moe,
    settings={
        **qwen2.HUB.settings,
        **MIXTURE,
        "shared_ffn_dim": "shared_expert_intermediate_size",
    },
    tensors={
        **TENSORS,
        **EXPERTS,
        **GATED_SHARED,
    },
    switches=qwen2.SWITCHES,
    fixed={**qwen2.FIXED, "qkv_bias": (True,)},
    defaults={**qwen2.DEFAULTS, "num_key_value_heads": 16},
    readings={
        **qwen3_moe.HUB.readings,
        "shared_ffn_dim": lambda model: mixture_of(model).shared.mlp.up.out_features,
    },
)


@variant_of(granite.granite)
def granitemoe(
    cfg: fdl.Config[Trainer], *, num_experts: int = 8, top_k: int = 2, shared_ffn_dim: int = 0
) -> None:
    """Granite with mixtures of experts; without a shared one if that has no width."""
    use_moe(cfg, num_experts=num_experts, top_k=top_k)
    if shared_ffn_dim:
        use_shared_expert(cfg, ffn_dim=shared_ffn_dim)


_INPUT = f"{LAYER}.block_sparse_moe.input_linear.weight"
GRANITEMOE = Family(
    model_type="granitemoe",
    architecture="GraniteMoeForCausalLM",
    config=granitemoe,
    settings=without(granite.HUB.settings, "mlp_bias")
    | {"num_experts": "num_local_experts", "top_k": "num_experts_per_tok"},
    tensors={
        **TENSORS,
        "blocks.*.mlp.router": f"{LAYER}.block_sparse_moe.router.layer",
        "blocks.*.mlp.experts.gate": Joined(_INPUT, 0, 2, dim=1),
        "blocks.*.mlp.experts.up": Joined(_INPUT, 1, 2, dim=1),
        "blocks.*.mlp.experts.down": f"{LAYER}.block_sparse_moe.output_linear.weight",
        **joined(
            ("blocks.*.mlp.shared.gate", "blocks.*.mlp.shared.up"),
            f"{LAYER}.shared_mlp.input_linear",
            of=2,
        ),
        "blocks.*.mlp.shared.down": f"{LAYER}.shared_mlp.output_linear",
    },
    fixed=SILU,
    readings=granite.HUB.readings,
)
GRANITEMOESHARED = replace(
    GRANITEMOE,
    model_type="granitemoeshared",
    architecture="GraniteMoeSharedForCausalLM",
    settings={**GRANITEMOE.settings, "shared_ffn_dim": "shared_intermediate_size"},
    readings={
        **granite.HUB.readings,
        "shared_ffn_dim": lambda model: getattr(mixture_of(model).shared, "ffn_dim", 0),
    },
)


@variant_of(olmo2.olmo2)
def flex_olmo(
    cfg: fdl.Config[Trainer], *, num_experts: int = 7, top_k: int = 5, normalize: bool = False
) -> None:
    """OLMo 2 with mixtures of experts."""
    use_moe(cfg, num_experts=num_experts, top_k=top_k)
    for router in find(cfg.model, Router):
        router.normalize = normalize


FLEX_OLMO = Family(
    model_type="flex_olmo",
    architecture="FlexOlmoForCausalLM",
    config=flex_olmo,
    settings={**olmo2.HUB.settings, "num_experts": "num_experts"}
    | {"top_k": "num_experts_per_tok", "normalize": "norm_topk_prob"},
    tensors={**cast(Tensors, olmo2.HUB.tensors), **EXPERTS},
    fixed=SILU,
    defaults={"rms_norm_eps": 1e-6, "rope_theta": 500_000.0},
)


@variant_of(decoder, eps=1e-6, theta=5e6)
def minimax_m2(
    cfg: fdl.Config[Trainer], *, eps: float, num_experts: int = 256, top_k: int = 8
) -> None:
    """A decoder with QK-norm across heads, and mixtures of experts with sigmoid routers."""
    olmo2.norm_across_heads(cfg, eps=eps)
    use_moe(cfg, num_experts=num_experts, top_k=top_k)
    use_sigmoids(cfg)


MINIMAX_M2 = Family(
    model_type="minimax_m2",
    architecture="MiniMaxM2ForCausalLM",
    config=minimax_m2,
    settings={
        **without(mixtral.HUB.settings, "window"),
        **ROTARY,
    },
    tensors={
        **cast(Tensors, mixtral.HUB.tensors),
        **olmo2.NORMS_ACROSS_HEADS,
        SELECTION_BIAS: (f"{LAYER}.block_sparse_moe.e_score_correction_bias"),
    },
    fixed={**SILU, "scoring_func": ("sigmoid",), "use_qk_norm": (True,)},
    defaults={"num_key_value_heads": 8, "head_dim": 128},
    constants={"rotary_dim": None},
)


@variant_of(decoder)
def sigmoid_mixture(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    expert_ffn_dim: int,
    num_experts: int,
    num_shared: int,
    top_k: int,
    first_dense: int = 1,
    mlp_types: Sequence[str] | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    normalize: bool = True,
    route_scale: float = 1.0,
    qk_norm: bool = False,
) -> None:
    """A decoder with the mixtures of DeepSeek V3, and QK-norm per head if `qk_norm`.

    `mlp_types`, if given, takes precedence over `first_dense`.
    """
    first_dense = first_dense if mlp_types is None else first_dense_of(mlp_types)
    if qk_norm:
        use_qk_norm(cfg, eps=eps)
    mix(cfg, num_experts, top_k, first_dense, expert_ffn_dim, num_shared, normalize, route_scale)
    use_sigmoids(cfg, num_groups, top_groups)


_MIXTURE: Mapping[str, str] = {
    "expert_ffn_dim": "moe_intermediate_size",
    "num_experts": "n_routed_experts",
    "num_shared": "n_shared_experts",
    "top_k": "num_experts_per_tok",
    "num_groups": "n_group",
    "top_groups": "topk_group",
    "normalize": "norm_topk_prob",
    "route_scale": "routed_scaling_factor",
}
_TENSORS = {**TENSORS, **EXPERTS, **SHARED, **SIGMOID_ROUTER}


@variant_of(sigmoid_mixture, rotary_share=0.5, attention_out_bias=False)
def glm4_moe(cfg: fdl.Config[Trainer]) -> None:
    """A decoder that rotates half of each head, without a bias at the output of attention."""


GLM4_MOE = Family(
    model_type="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    config=glm4_moe,
    settings={**SETTINGS, **ROTARY, **_MIXTURE, "attention_bias": "attention_bias"}
    | {"first_dense": "first_k_dense_replace", "qk_norm": "use_qk_norm"},
    tensors={**_TENSORS, **QK_NORMS},
    fixed=SILU,
    defaults={
        "num_key_value_heads": 8,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408,
    },
    readings={"qk_norm": lambda model: model.blocks[0].attention.query_norm is not None},
    constants={"num_nextn_predict_layers": 0},
    known=("num_mtp_layers",),
    ignored=("model.layers.46.*", "model.layers.92.*"),  # multi-token prediction of GLM 4.5
)


@variant_of(sigmoid_mixture, first_dense=0, theta=1e6)
def solar_open(cfg: fdl.Config[Trainer]) -> None:
    """A decoder in which all layers are mixtures."""


SOLAR_OPEN = Family(
    model_type="solar_open",
    architecture="SolarOpenForCausalLM",
    config=solar_open,
    settings={**SETTINGS, **_MIXTURE, "attention_bias": "attention_bias"},
    tensors=_TENSORS,
    fixed=SILU,
    defaults={
        **GLM4_MOE.defaults,
        "head_dim": 128,
        "intermediate_size": lambda found: found["moe_intermediate_size"],
    },
    known=("first_k_dense_replace", "partial_rotary_factor", "use_qk_norm"),
)


@variant_of(sigmoid_mixture, qk_norm=True, eps=1e-6)
def dots1(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with QK-norm."""


DOTS1 = Family(
    model_type="dots1",
    architecture="Dots1ForCausalLM",
    config=dots1,
    settings={**SETTINGS, **_MIXTURE, **WINDOWS, "attention_bias": "attention_bias"}
    | {"first_dense": "first_k_dense_replace"},
    tensors=GLM4_MOE.tensors,
    fixed=SILU,
    defaults={
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "sliding_window": 4096,
        "layer_types": lambda found: sliding_from(
            found.get("max_window_layers", 62), found["num_hidden_layers"]
        ),
    },
    known=("max_window_layers",),
)


@variant_of(sigmoid_mixture, qk_norm=True)
def exaone_moe(cfg: fdl.Config[Trainer], *, window: int | None) -> None:
    """A decoder with QK-norm, of which layers with a window alone have RoPE."""
    rotate_in_windows_only(cfg, window)


EXAONE_MOE = Family(
    model_type="exaone_moe",
    architecture="ExaoneMoeForCausalLM",
    config=exaone_moe,
    settings={**SETTINGS, **WINDOWS, **_MIXTURE, "num_experts": "num_experts"}
    | {"num_shared": "num_shared_experts", "mlp_types": "mlp_layer_types"}
    | {"first_dense": "first_k_dense_replace"},
    tensors={
        **cast(Tensors, GLM4_MOE.tensors),
        SELECTION_BIAS: f"{LAYER}.mlp.e_score_correction_bias",
    },
    fixed=SILU,
    defaults={
        "sliding_window": 4096,
        "layer_types": partial(periodic_layers, period=4),
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1024,
        "routed_scaling_factor": 2.5,
    },
    readings={"mlp_types": mlp_types_of, "window": window_of_rotated},
    known=PERIODS,
    ignored=("mtp.*",),
)
GLM4_MOE_LITE = replace(
    deepseek3.HUB,
    model_type="glm4_moe_lite",
    architecture="Glm4MoeLiteForCausalLM",
    settings={
        **without(deepseek3.HUB.settings, "first_dense"),
        "mlp_types": "mlp_layer_types",
    },
    defaults={
        "mlp_layer_types": dense_first,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 64,
        "num_experts_per_tok": 4,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.8,
        "num_key_value_heads": 20,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "rms_norm_eps": 1e-5,
    },
    readings={"mlp_types": mlp_types_of},
    ignored=("model.layers.47.*",),
)


@variant_of(qwen3_moe.qwen3_moe, theta=500_000.0)
def mellum(
    cfg: fdl.Config[Trainer], *, mlp_types: Sequence[str] | None = None, local_theta: float = 1e4
) -> None:
    """Qwen 3 MoE with another RoPE in layers with a window.

    Raises:
      ValueError: an MLP is no mixture.
    """
    if first_dense_of(mlp_types or ()):
        raise ValueError(f"{mlp_types=} must all be {SPARSE}.")
    rotate_in_windows_by(cfg, local_theta)


MELLUM = Family(
    model_type="mellum",
    architecture="MellumForCausalLM",
    config=mellum,
    settings={
        **SETTINGS,
        **WINDOWS,
        "attention_bias": "attention_bias",
        "expert_ffn_dim": "moe_intermediate_size",
        "num_experts": "num_local_experts",
        "top_k": "num_experts_per_tok",
        "normalize": "norm_topk_prob",
        "mlp_types": "mlp_layer_types",
        "local_theta": "rope_local_base_freq",
    },
    tensors=qwen3_moe.HUB.tensors,
    fixed=SILU,
    defaults={
        "head_dim": 128,
        "vocab_size": 98_304,
        "sliding_window": 1024,
        "layer_types": [FULL],
        "intermediate_size": lambda found: found["moe_intermediate_size"],
    },
    readings={"mlp_types": mlp_types_of, "local_theta": theta_in_windows},
    known=("num_nextn_predict_layers", "mtp_layer_types", "mtp_mlp_layer_types"),
)

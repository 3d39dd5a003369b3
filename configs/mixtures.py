"""Families with mixtures of experts, and with the other parts of another family."""

from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl

from fidgpt.configs import deepseek3, granite, mixtral, olmo2, qwen2, qwen3_moe
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.deepseek import (
    MIXTURE,
    SHARED,
    SIGMOID_ROUTER,
    dense_first,
    experts,
    first_dense_of,
    mix,
    use_sigmoids,
)
from fidgpt.configs.hub import (
    AS_EXPERTS,
    EXPERT_ROWS,
    EXPERTS,
    LAYER,
    QK_NORMS,
    SELECTION_BIAS,
    joined,
    shared_as,
)
from fidgpt.configs.readings import SPARSE
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import (
    FULL,
    PERIODS,
    periodic_layers,
    rotate_in_windows_by,
    rotate_in_windows_only,
    sliding_from,
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


_SHARED = shared_as("mlp.shared_expert")
GATED_SHARED: Mapping[str, str] = {
    "blocks.*.mlp.shared.gate": f"{LAYER}.mlp.shared_expert_gate",
    **{path.replace(".shared.", ".shared.mlp."): name for path, name in _SHARED.items()},
}
QWEN2_MOE = qwen2.HUB.near(
    "qwen2_moe",
    qwen2_moe,
    "shared_ffn_dim",
    settings=qwen3_moe.MIXTURE,
    tensors={**EXPERTS, **GATED_SHARED},
    fixed={"qkv_bias": (True,)},
    defaults={"num_key_value_heads": 16},
)


@variant_of(granite.granite)
def granitemoe(
    cfg: fdl.Config[Trainer], *, num_experts: int = 8, top_k: int = 2, shared_ffn_dim: int = 0
) -> None:
    """Granite with mixtures of experts; without a shared one if that has no width."""
    use_moe(cfg, num_experts=num_experts, top_k=top_k)
    if shared_ffn_dim:
        use_shared_expert(cfg, ffn_dim=shared_ffn_dim)


_SPARSE = f"{LAYER}.block_sparse_moe"
GRANITEMOE = granite.HUB.near(
    "granitemoe",
    granitemoe,
    "top_k",
    architecture="GraniteMoeForCausalLM",
    settings={"mlp_bias": ..., "num_experts": "num_local_experts"},
    tensors={
        **joined(EXPERT_ROWS, f"{_SPARSE}.input_linear.weight", of=2, dim=1),
        "blocks.*.mlp.experts.down": f"{_SPARSE}.output_linear.weight",
        "blocks.*.mlp.router": f"{_SPARSE}.router.layer",
        **joined([*_SHARED][:2], f"{LAYER}.shared_mlp.input_linear", of=2),
        "blocks.*.mlp.shared.down": f"{LAYER}.shared_mlp.output_linear",
    },
)
GRANITEMOESHARED = GRANITEMOE.near(
    "granitemoeshared",
    architecture="GraniteMoeSharedForCausalLM",
    settings={"shared_ffn_dim": "shared_intermediate_size"},
)


@variant_of(olmo2.olmo2, eps=1e-6, theta=500_000.0)
def flex_olmo(
    cfg: fdl.Config[Trainer], *, num_experts: int = 7, top_k: int = 5, normalize: bool = False
) -> None:
    """OLMo 2 with mixtures of experts."""
    use_moe(cfg, num_experts=num_experts, top_k=top_k)
    for router in find(cfg.model, Router):
        router.normalize = normalize


FLEX_OLMO = olmo2.HUB.near(
    "flex_olmo",
    flex_olmo,
    "num_experts top_k normalize",
    tensors=EXPERTS,
)


@variant_of(decoder, eps=1e-6, theta=5e6, num_kv_heads=8, head_dim=128)
def minimax_m2(
    cfg: fdl.Config[Trainer], *, eps: float, num_experts: int = 256, top_k: int = 8
) -> None:
    """A decoder with QK-norm across heads, and mixtures of experts with sigmoid routers."""
    olmo2.norm_across_heads(cfg, eps=eps)
    use_moe(cfg, num_experts=num_experts, top_k=top_k)
    use_sigmoids(cfg)


MINIMAX_M2 = mixtral.HUB.near(
    "minimax_m2",
    minimax_m2,
    "rotary_share",
    architecture="MiniMaxM2ForCausalLM",
    settings={"window": ...},
    tensors={
        **olmo2.NORMS_ACROSS_HEADS,
        SELECTION_BIAS: f"{LAYER}.block_sparse_moe.e_score_correction_bias",
    },
    fixed={"scoring_func": ("sigmoid",), "use_qk_norm": (True,)},
    defaults={
        "partial_rotary_factor": lambda hub: (
            hub["rotary_dim"] / hub.get("head_dim", 128) if hub.get("rotary_dim") else 1.0
        ),
    },
    constants={"rotary_dim": None},
    known=(
        *("attn_type_list", "layernorm_*_beta", "mlp_intermediate_size", "qk_norm_type"),
        *("shared_intermediate_size", "shared_moe_mode", "use_routing_bias"),
    ),
)


@variant_of(decoder, experts, first_dense=1, normalize=True)
def sigmoid_mixture(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    experts: Sequence[Any],
    num_groups: int = 1,
    top_groups: int = 1,
    qk_norm: bool = False,
) -> None:
    """A decoder with the mixtures of DeepSeek V3, and QK-norm per head if `qk_norm`."""
    if qk_norm:
        use_qk_norm(cfg, eps=eps)
    mix(cfg, *experts)
    use_sigmoids(cfg, num_groups, top_groups)


near_mixture = family(
    "sigmoid_mixture",
    sigmoid_mixture,
    "normalize",
    settings=MIXTURE,
    tensors={**EXPERTS, **SHARED, **SIGMOID_ROUTER},
).near


_EXPERTS = {"num_experts": 128, "num_shared": 1, "top_k": 8, "expert_ffn_dim": 1408}


@variant_of(sigmoid_mixture, **_EXPERTS, num_kv_heads=8, rotary_share=0.5, attention_out_bias=False)
def glm4_moe(cfg: fdl.Config[Trainer]) -> None:
    """A decoder that rotates half of each head, without a bias at the output of attention."""


GLM4_MOE = near_mixture(
    "glm4_moe",
    glm4_moe,
    "rotary_share attention_bias first_dense qk_norm",
    tensors=QK_NORMS,
    constants={"num_nextn_predict_layers": 0},
    ignored=("model.layers.46.*", "model.layers.92.*"),  # multi-token prediction of GLM 4.5
)


@variant_of(sigmoid_mixture, **_EXPERTS, num_kv_heads=8, head_dim=128, first_dense=0, theta=1e6)
def solar_open(cfg: fdl.Config[Trainer]) -> None:
    """A decoder in which all layers are mixtures."""


SOLAR_OPEN = near_mixture(
    "solar_open",
    solar_open,
    "attention_bias",
    defaults=AS_EXPERTS,
    known="first_k_dense_replace partial_rotary_factor use_qk_norm",
)


@variant_of(sigmoid_mixture, qk_norm=True, eps=1e-6, first_dense=0, normalize=False, window=4096)
def dots1(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with QK-norm."""


def _dots1_layers(hub: Mapping[str, Any]) -> list[str]:
    return sliding_from(hub.get("max_window_layers", 62), hub["num_hidden_layers"])


DOTS1 = near_mixture(
    "dots1",
    dots1,
    "window layer_types attention_bias first_dense",
    tensors=QK_NORMS,
    defaults={"layer_types": _dots1_layers},
    known=("max_window_layers",),
)


_EXAONE = {**_EXPERTS, "num_experts": 64, "expert_ffn_dim": 1024, "route_scale": 2.5}


@variant_of(sigmoid_mixture, **_EXAONE, qk_norm=True, window=4096)
def exaone_moe(cfg: fdl.Config[Trainer], *, window: int | None) -> None:
    """A decoder with QK-norm, and with RoPE only in layers with a window."""
    rotate_in_windows_only(cfg, window)


EXAONE_MOE = near_mixture(
    "exaone_moe",
    exaone_moe,
    "window layer_types num_experts num_shared mlp_types first_dense",
    tensors={**QK_NORMS, SELECTION_BIAS: f"{LAYER}.mlp.e_score_correction_bias"},
    defaults={"layer_types": periodic_layers},
    readings={"window": window_of_rotated},
    known=PERIODS,
)
_LITE = {"num_experts": 64, "top_k": 4, "expert_ffn_dim": 1536, "route_scale": 1.8, "eps": 1e-5}
_LITE |= {"query_rank": 768, "head_dim": 192, "value_head_dim": 256, "num_kv_heads": 20}


@variant_of(deepseek3.v3, **_LITE, num_groups=1, top_groups=1)
def glm4_moe_lite(cfg: fdl.Config[Trainer]) -> None:
    """DeepSeek V3 without groups of experts."""


GLM4_MOE_LITE = deepseek3.HUB.near(
    "glm4_moe_lite",
    glm4_moe_lite,
    "mlp_types",
    settings={"first_dense": ...},
    defaults={"mlp_layer_types": dense_first},
    ignored=("model.layers.47.*",),
)


@variant_of(qwen3_moe.qwen3_moe, theta=500_000.0, head_dim=128, vocab_size=98_304, window=1024)
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


MELLUM = family(
    "mellum",
    mellum,
    "window layer_types attention_bias expert_ffn_dim top_k normalize mlp_types local_theta",
    settings={"num_experts": "num_local_experts"},
    tensors={**QK_NORMS, **EXPERTS},
    defaults={"layer_types": [FULL], **AS_EXPERTS},
)

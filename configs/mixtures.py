"""Families with mixtures of experts, and with the other parts of another family."""

from collections.abc import Mapping, Sequence

import fiddle as fdl

from fidgpt.configs import deepseek3, granite, mixtral, olmo2, qwen2, qwen3_moe
from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.deepseek import (
    MIXTURE,
    SHARED,
    SIGMOID_ROUTER,
    dense_first,
    first_dense_of,
    mix,
    use_sigmoids,
)
from fidgpt.configs.hub import EXPERTS, LAYER, QK_NORMS, SELECTION_BIAS, Joined, joined, shared_as
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


_INPUT = f"{LAYER}.block_sparse_moe.input_linear.weight"
GRANITEMOE = granite.HUB.near(
    "granitemoe",
    granitemoe,
    "top_k",
    architecture="GraniteMoeForCausalLM",
    settings={"mlp_bias": ..., "num_experts": "num_local_experts"},
    tensors={
        "blocks.*.mlp.router": f"{LAYER}.block_sparse_moe.router.layer",
        "blocks.*.mlp.experts.gate": Joined(_INPUT, 0, 2, dim=1),
        "blocks.*.mlp.experts.up": Joined(_INPUT, 1, 2, dim=1),
        "blocks.*.mlp.experts.down": f"{LAYER}.block_sparse_moe.output_linear.weight",
        **joined([*_SHARED][:2], f"{LAYER}.shared_mlp.input_linear", of=2),
        "blocks.*.mlp.shared.down": f"{LAYER}.shared_mlp.output_linear",
    },
)
GRANITEMOESHARED = GRANITEMOE.near(
    "granitemoeshared",
    architecture="GraniteMoeSharedForCausalLM",
    settings={"shared_ffn_dim": "shared_intermediate_size"},
)


@variant_of(olmo2.olmo2)
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
        **{"num_key_value_heads": 8, "head_dim": 128},
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


near_mixture = family(
    "sigmoid_mixture",
    sigmoid_mixture,
    "normalize",
    settings=MIXTURE,
    tensors={**EXPERTS, **SHARED, **SIGMOID_ROUTER},
).near


@variant_of(sigmoid_mixture, rotary_share=0.5, attention_out_bias=False)
def glm4_moe(cfg: fdl.Config[Trainer]) -> None:
    """A decoder that rotates half of each head, without a bias at the output of attention."""


_SIZES = {"n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8}
_SIZES |= {"num_key_value_heads": 8, "moe_intermediate_size": 1408}
GLM4_MOE = near_mixture(
    "glm4_moe",
    glm4_moe,
    "rotary_share attention_bias first_dense qk_norm",
    tensors=QK_NORMS,
    defaults=_SIZES,
    constants={"num_nextn_predict_layers": 0},
    ignored=("model.layers.46.*", "model.layers.92.*"),  # multi-token prediction of GLM 4.5
)


@variant_of(sigmoid_mixture, first_dense=0, theta=1e6)
def solar_open(cfg: fdl.Config[Trainer]) -> None:
    """A decoder in which all layers are mixtures."""


SOLAR_OPEN = near_mixture(
    "solar_open",
    solar_open,
    "attention_bias",
    defaults={
        **_SIZES,
        "head_dim": 128,
        "intermediate_size": lambda hub: hub["moe_intermediate_size"],
    },
    known=("first_k_dense_replace", "partial_rotary_factor", "use_qk_norm"),
)


@variant_of(sigmoid_mixture, qk_norm=True, eps=1e-6)
def dots1(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with QK-norm."""


DOTS1 = near_mixture(
    "dots1",
    dots1,
    "window layer_types attention_bias first_dense",
    tensors=QK_NORMS,
    defaults={
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "sliding_window": 4096,
        "layer_types": lambda hub: sliding_from(
            hub.get("max_window_layers", 62), hub["num_hidden_layers"]
        ),
    },
    known=("max_window_layers",),
)


@variant_of(sigmoid_mixture, qk_norm=True)
def exaone_moe(cfg: fdl.Config[Trainer], *, window: int | None) -> None:
    """A decoder with QK-norm, and with RoPE only in layers with a window."""
    rotate_in_windows_only(cfg, window)


EXAONE_MOE = near_mixture(
    "exaone_moe",
    exaone_moe,
    "window layer_types num_experts num_shared mlp_types first_dense",
    tensors={**QK_NORMS, SELECTION_BIAS: f"{LAYER}.mlp.e_score_correction_bias"},
    defaults={
        "sliding_window": 4096,
        "layer_types": periodic_layers,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1024,
        "routed_scaling_factor": 2.5,
    },
    readings={"window": window_of_rotated},
    known=PERIODS,
    ignored=("mtp.*",),
)
GLM4_MOE_LITE = deepseek3.HUB.near(
    "glm4_moe_lite",
    None,
    "mlp_types",
    settings={"first_dense": ...},
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


MELLUM = family(
    "mellum",
    mellum,
    "window layer_types attention_bias expert_ffn_dim top_k normalize mlp_types local_theta",
    settings={"num_experts": "num_local_experts"},
    tensors={**QK_NORMS, **EXPERTS},
    defaults={
        "head_dim": 128,
        "vocab_size": 98_304,
        "sliding_window": 1024,
        "layer_types": [FULL],
        "intermediate_size": lambda hub: hub["moe_intermediate_size"],
    },
)

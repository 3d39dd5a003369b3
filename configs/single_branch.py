"""Families whose layers have one branch: Mamba 2 (2024) and Nemotron-H (NVIDIA, 2025)."""

from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl
from torch import nn

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.deepseek import MIXTURE, mix, use_sigmoids
from fidgpt.configs.hub import Tensors, experts_as, in_layers, linears
from fidgpt.configs.mamba import NO_LIMIT, mamba_tensors
from fidgpt.configs.readings import of_mixer
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, LINEAR, OLD_KINDS, shortest_period
from fidgpt.fiddlers import use_no_positions, use_shared_expert, use_squared_relu
from fidgpt.fiddlers.recurrent import put_mixer
from fidgpt.graph import clone_part, find
from fidgpt.model import Mamba2, NoMixer, NoMLP, PlainExperts
from fidgpt.train import Trainer

_LAYERS = "backbone.layers"
_LAYER = f"{_LAYERS}.*"
_MIXTURE, _MLP = "moe", "mlp"  # kinds of layers in config.json, besides the kinds of mixers
_LETTERS = {"M": LINEAR, "E": _MIXTURE, "*": FULL, "-": _MLP}
_ENDS = {
    "embedding": "backbone.embeddings",
    "norm": "backbone.norm_f",
    "unembedding": "lm_head",
} | {"blocks.*.attention_norm": f"{_LAYER}.norm"}


def _mix_alone(block: Any) -> None:
    """Remove the MLP of a block."""
    block.mlp_norm, block.mlp = fdl.ArgFactory(nn.Identity), fdl.ArgFactory(NoMLP)


@variant_of(decoder, ffn_dim=1)
def mamba2(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    num_heads: int,
    head_dim: int | None = 64,
    mamba_groups: int = 8,
    state_dim: int = 128,
    filter_size: int = 4,
    mamba_bias: bool = False,
    filter_bias: bool = True,
) -> None:
    """A decoder of Mamba 2, without MLPs."""
    (block,) = cfg.model.blocks
    sizes = {"num_groups": mamba_groups, "state_dim": state_dim, "filter_size": filter_size}
    sizes |= {"num_heads": num_heads, "head_dim": head_dim, "filter_bias": filter_bias}
    put_mixer(block, Mamba2, **sizes, bias=mamba_bias or None, eps=eps)
    _mix_alone(block)


def _mamba2_tensors(settings: Mapping[str, Any]) -> Tensors:
    sizes = {**settings, "mamba_heads": settings["num_heads"]}
    sizes["mamba_head_dim"] = settings["head_dim"]
    return {**_ENDS, **mamba_tensors(sizes, [LINEAR], "mixer", _LAYERS)}


# Settings of Mamba 2 that both families have.
_STATES: Mapping[str, str] = {
    "mamba_groups": "n_groups",
    "filter_size": "conv_kernel",
    "mamba_bias": "use_bias",
    "filter_bias": "use_conv_bias",
    "eps": "layer_norm_epsilon",
}
_KNOWN = ("chunk_size", "expand")
_KNOWN += ("rescale_prenorm_residual", "residual_in_fp32", "rms_norm", "norm_before_gate")
_ROPE = dict.fromkeys(("theta", "scaling"), ...)
MAMBA2 = family(
    "mamba2",
    mamba2,
    settings={**_STATES, **_ROPE, "num_kv_heads": ..., "ffn_dim": ...}
    | {"num_heads": "num_heads", "state_dim": "state_size"},
    tensors=_mamba2_tensors,
    # If it is true, transformers 5 divides output projections that it has loaded.
    fixed={**NO_LIMIT, "rescale_prenorm_residual": (False, None)},
    defaults={"num_heads": 128, "head_dim": 64, "n_groups": 8},
    readings={name: f"blocks.0.attention.{name}" for name in ("num_heads", "head_dim")},
    known=_KNOWN,
    whole_heads=True,
)


@variant_of(decoder, num_kv_heads=8, head_dim=128, num_heads=32, ffn_dim=21_504)
def nemotron_h(
    cfg: fdl.Config[Trainer],
    *,
    eps: float,
    kinds: Sequence[str],
    mamba_heads: int = 128,
    mamba_head_dim: int = 64,
    mamba_groups: int = 8,
    state_dim: int = 128,
    filter_size: int = 4,
    mamba_bias: bool = False,
    filter_bias: bool = True,
    min_timestep: float = 0.001,
    expert_ffn_dim: int = 7688,
    shared_ffn_dim: int = 7688,
    num_experts: int = 8,
    top_k: int = 2,
    normalize: bool = True,
    route_scale: float = 1.0,
    num_groups: int = 1,
    top_groups: int = 1,
) -> None:
    """Layers of Mamba 2, attention, squared ReLUs or mixtures of these, without positions.

    Raises:
      ValueError: a kind is unknown.
    """
    kinds = shortest_period([OLD_KINDS.get(kind, kind) for kind in kinds])
    if unknown := sorted({*kinds} - {*_LETTERS.values()}):
        raise ValueError(f"layers_block_type has {', '.join(unknown)}.")
    use_no_positions(cfg)
    use_squared_relu(cfg)
    blocks = [clone_part(cfg.model.blocks[0]) for _ in kinds]
    if _MIXTURE in kinds:
        mix(cfg, num_experts, top_k, 0, expert_ffn_dim, 1, normalize, route_scale)
        use_shared_expert(cfg, ffn_dim=shared_ffn_dim)
        use_sigmoids(cfg, num_groups, top_groups)
        for experts in find(cfg.model, PlainExperts):
            experts.bias = False
    sizes = {"num_heads": mamba_heads, "head_dim": mamba_head_dim, "num_groups": mamba_groups}
    sizes |= {"state_dim": state_dim, "filter_size": filter_size, "filter_bias": filter_bias}
    for block, kind in zip(blocks, kinds, strict=True):
        if kind == _MIXTURE:
            block.mlp = clone_part(cfg.model.blocks[0].mlp)
        if kind == LINEAR:
            bias = mamba_bias or None
            put_mixer(block, Mamba2, **sizes, bias=bias, min_timestep=min_timestep, eps=eps)
        if kind in (LINEAR, FULL):
            _mix_alone(block)
        else:
            block.attention_norm = fdl.ArgFactory(nn.Identity)
            block.attention = fdl.ArgFactory(NoMixer)
    cfg.model.blocks = blocks


def _nemotron_tensors(settings: Mapping[str, Any]) -> Tensors:
    kinds = [LINEAR if OLD_KINDS.get(kind, kind) == LINEAR else FULL for kind in settings["kinds"]]
    mixer = f"{_LAYER}.mixer"
    names = {"mlp.router": "gate", "mlp.router.selection_bias.bias": "gate.e_score_correction_bias"}
    for name in ("up", "down"):
        names |= {f"mlp.{name}": f"{name}_proj"}
        names |= {f"mlp.shared.{name}": f"shared_experts.{name}_proj"}
    return {
        **_ENDS,
        "blocks.*.mlp_norm": f"{_LAYER}.norm",
        **in_layers(mixer, names),
        **{f"blocks.*.attention.{path}": name for path, name in linears(mixer).items()},
        **experts_as(mixer),
        **mamba_tensors(settings, kinds, "mixer", _LAYERS),
    }


def _kinds(hub: Mapping[str, Any]) -> list[str]:
    return [_LETTERS[letter] for letter in hub.get("hybrid_override_pattern") or "ME*-"]


def _kinds_of(model: Any) -> list[str]:
    return [
        {Mamba2: LINEAR, NoMixer: _MIXTURE if hasattr(block.mlp, "experts") else _MLP}.get(
            type(block.attention), FULL
        )
        for block in model.blocks
    ]


def _width(model: Any) -> int:
    return next(block.mlp for block in model.blocks if hasattr(block.mlp, "up")).up.out_features


NEMOTRON_H = family(
    "nemotron_h",
    nemotron_h,
    "mlp_bias",
    settings={**MIXTURE, **_STATES, **_ROPE, "num_shared": ..., "kinds": "layers_block_type"}
    | {"mamba_heads": "mamba_num_heads", "mamba_head_dim": "mamba_head_dim"}
    | {"state_dim": "ssm_state_size", "min_timestep": "time_step_min"}
    | {"shared_ffn_dim": "moe_shared_expert_intermediate_size", "normalize": "norm_topk_prob"},
    tensors=_nemotron_tensors,
    fixed={"hidden_act": ..., "mlp_hidden_act": ("relu2",), "mamba_hidden_act": ("silu",)}
    | {"moe_latent_size": (None,), "sliding_window": (None,)}
    | {"partial_rotary_factor": (None, 1.0)},
    defaults={
        "num_hidden_layers": lambda hub: len(hub.get("layers_block_type") or _kinds(hub)),
        "layers_block_type": _kinds,
        "head_dim": 128,
    },
    readings={
        "kinds": _kinds_of,
        "ffn_dim": _width,
        "mlp_bias": lambda model: any("down.bias" in path for path, _ in model.named_parameters()),
        "min_timestep": of_mixer(lambda mixer: mixer.min_timestep),
    },
    aliases={"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel"}
    | {"mamba_dt_min": "time_step_min", "mamba_conv_bias": "use_conv_bias"}
    | {"num_local_experts": "n_routed_experts"},
    known=(
        *(*_KNOWN, "time_step_limit", "hybrid_override_pattern", "mamba_proj_bias"),
        *("n_shared_experts", "attention_head_dim"),
        "attention_bias",  # which its class does not read
    ),
    ignored=("mtp.*",),
)

"""Families whose layers have one branch: Mamba 2 (2024) and Nemotron-H (NVIDIA, 2025)."""

from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl
from torch import nn

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.deepseek import MIXTURE, experts, mix, use_sigmoids
from fidgpt.configs.hub import Tensors, experts_as, in_layers, linears
from fidgpt.configs.mamba import NO_LIMIT, mamba, mamba_tensors
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


@variant_of(decoder, mamba, ffn_dim=1, num_heads=128, head_dim=64, mamba_groups=8, state_dim=128)
def mamba2(
    cfg: fdl.Config[Trainer], *, num_heads: int, head_dim: int | None, mamba: Mapping[str, Any]
) -> None:
    """A decoder of Mamba 2, without MLPs."""
    (block,) = cfg.model.blocks
    put_mixer(block, Mamba2, **{**mamba, "num_heads": num_heads, "head_dim": head_dim})
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
_KNOWN = "chunk_size expand time_step_floor time_step_max rescale_prenorm_residual "
_KNOWN += "residual_in_fp32 rms_norm norm_before_gate"
_ROPE = dict.fromkeys(("theta", "scaling"), ...)
MAMBA2 = family(
    "mamba2",
    mamba2,
    settings={**_STATES, **_ROPE, "num_kv_heads": ..., "ffn_dim": ...}
    | {"num_heads": "num_heads", "state_dim": "state_size"},
    tensors=_mamba2_tensors,
    # If it is true, transformers 5 divides output projections that it has loaded.
    fixed={**NO_LIMIT, "rescale_prenorm_residual": (False, None)},
    readings={name: f"blocks.0.attention.{name}" for name in ("num_heads", "head_dim")},
    known=f"{_KNOWN} time_step_min time_step_rank",
    whole_heads=True,
)


_HEADS = {"num_kv_heads": 8, "head_dim": 128, "num_heads": 32, "ffn_dim": 21_504}
_EXPERTS = {"expert_ffn_dim": 7688, "num_experts": 8, "num_shared": 1, "top_k": 2}
_EXPERTS |= {"normalize": True, "first_dense": 0}


@variant_of(decoder, mamba, experts, **_HEADS, **_EXPERTS, mamba_groups=8, state_dim=128)
def nemotron_h(
    cfg: fdl.Config[Trainer],
    *,
    kinds: Sequence[str],
    mamba: Mapping[str, Any],
    experts: Sequence[Any],
    time_step_min: float = 0.001,
    shared_ffn_dim: int = 7688,
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
        mix(cfg, *experts)
        use_shared_expert(cfg, ffn_dim=shared_ffn_dim)
        use_sigmoids(cfg, num_groups, top_groups)
        for plain in find(cfg.model, PlainExperts):
            plain.bias = False
    for block, kind in zip(blocks, kinds, strict=True):
        if kind == _MIXTURE:
            block.mlp = clone_part(cfg.model.blocks[0].mlp)
        if kind == LINEAR:
            put_mixer(block, Mamba2, **mamba, min_timestep=time_step_min)
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


def _num_layers(hub: Mapping[str, Any]) -> int:
    return len(hub.get("layers_block_type") or _kinds(hub))


_SIZES = {"num_shared": ..., "kinds": "layers_block_type", "mamba_heads": "mamba_num_heads"}
_SIZES |= {"state_dim": "ssm_state_size", "shared_ffn_dim": "moe_shared_expert_intermediate_size"}
_ALIASES = {"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel"}
_ALIASES |= {"mamba_dt_min": "time_step_min", "mamba_conv_bias": "use_conv_bias"}
_ALIASES |= {"num_local_experts": "n_routed_experts"}
NEMOTRON_H = family(
    "nemotron_h",
    nemotron_h,
    "mlp_bias mamba_head_dim normalize time_step_min",
    settings={**MIXTURE, **_STATES, **_ROPE, **_SIZES},
    tensors=_nemotron_tensors,
    fixed={"hidden_act": ..., "mlp_hidden_act": ("relu2",), "mamba_hidden_act": ("silu",)}
    | dict.fromkeys(("moe_latent_size", "sliding_window"), (None,)),
    defaults={"num_hidden_layers": _num_layers, "layers_block_type": _kinds},
    readings={"kinds": _kinds_of, "time_step_min": of_mixer(lambda mixer: mixer.min_timestep)},
    aliases=_ALIASES,
    # Its class does not read attention_bias.
    known=f"{_KNOWN} time_step_limit hybrid_override_pattern mamba_proj_bias n_shared_experts "
    "attention_head_dim attention_bias",
)

"""Kimi Linear (Kimi Team, 2025, arXiv:2510.26692): three delta nets per latent attention."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fiddle as fdl
from torch import Tensor

from fidgpt.configs import deepseek
from fidgpt.configs.hub import (
    LAYER,
    SELECTION_BIAS,
    Form,
    Piece,
    Tensors,
    experts_as,
    linears,
    shared_as,
)
from fidgpt.configs.hybrids import by_layer, use_mixers
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, LINEAR
from fidgpt.fiddlers import use_no_positions
from fidgpt.model import KimiDeltaNet, RMSNorm
from fidgpt.train import Trainer

_USUAL = {"num_experts": 256, "num_shared": 1, "top_k": 8, "expert_ffn_dim": 1024}
_USUAL |= {"first_dense": 1, "normalize": True, "route_scale": 2.446, "query_rank": None}


@variant_of(deepseek.latent, deepseek.experts, **_USUAL, seq_len=1_048_576, eps=1e-5)
def kimi_linear(
    cfg: fdl.Config[Trainer],
    *,
    num_layers: int,
    eps: float,
    experts: Sequence[Any],
    num_groups: int = 1,
    top_groups: int = 1,
    mixers: Sequence[str] | None = None,
    delta_heads: int = 32,
    delta_head_dim: int = 128,
    filter_size: int = 4,
) -> None:
    """A decoder of delta nets and latent attention without positions, with V3's mixtures."""
    use_no_positions(cfg)
    use_mixers(
        cfg,
        _mixers(num_layers) if mixers is None else mixers,
        KimiDeltaNet,
        num_heads=delta_heads,
        head_dim=delta_head_dim,
        filter_size=filter_size,
        norm=fdl.Partial(RMSNorm, eps=eps),
    )
    deepseek.mix(cfg, *experts)
    deepseek.use_sigmoids(cfg, num_groups, top_groups)


def _mixers(num_layers: int) -> list[str]:
    """Return the published kinds: attention in every fourth layer, and in the last one."""
    return [FULL if i % 4 == 3 or i == num_layers - 1 else LINEAR for i in range(num_layers)]


@dataclass(frozen=True)
class _ByHead:
    """A vector of numbers of heads that the file stores as [1, 1, heads, 1]."""

    name: str

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield the whole parameter as one piece."""
        whole = ours.view(1, 1, -1, 1)
        yield Piece(self.name, tuple(whole.shape), whole, lambda theirs: theirs)


_NAMES = {
    **{f"{name}_filter": f"{name[0]}_conv1d" for name in ("query", "key", "value")},
    **{"timestep.down": "f_a_proj", "timestep.up": "f_b_proj", "decay.bias": "dt_bias"},
    **{"gate.down": "g_a_proj", "gate.up": "g_b_proj", "beta": "b_proj", "norm": "o_norm"},
}


_MLP = "block_sparse_moe"
_EXPERTS = {
    **experts_as(f"{LAYER}.{_MLP}", "w1", "w3", "w2"),
    **shared_as(f"{_MLP}.shared_experts"),
    "blocks.*.mlp.router": f"{LAYER}.{_MLP}.gate",
    SELECTION_BIAS: f"{LAYER}.{_MLP}.gate.e_score_correction_bias",
}


def _tensors(settings: Mapping[str, Any]) -> Tensors:
    attention = f"{LAYER}.self_attn"
    linear: dict[str, str | Form] = {path: f"{attention}.{name}" for path, name in _NAMES.items()}
    linear |= {**linears(attention), "decay.log_rate": _ByHead(f"{attention}.A_log")}
    full = {"query": f"{attention}.q_proj", "kv_down": f"{attention}.kv_a_proj_with_mqa"}
    layers, kinds = settings["num_layers"], settings["mixers"]
    return _EXPERTS | by_layer(kinds or _mixers(layers), layers, {LINEAR: linear, FULL: full})


_LISTED = "linear_attn_config"  # of published files: kinds and sizes of layers, counted from 1
# The keys of sizes, their keys in that mapping, and transformers' values where both are missing.
_SIZES = {
    "linear_num_heads": ("num_heads", 32),
    "linear_head_dim": ("head_dim", 128),
    "linear_conv_kernel_dim": ("short_conv_kernel_size", 4),
}
_SETTINGS = dict(zip(("delta_heads", "delta_head_dim", "filter_size"), _SIZES, strict=True))
_SETTINGS |= {"seq_len": "model_max_length", "top_k": "num_experts_per_token"}
_SETTINGS |= {"num_groups": "num_expert_group", "normalize": "moe_renormalize"}


def _kinds(hub: Mapping[str, Any]) -> list[str]:
    """Return the kinds of layers of a config.json, which are transformers' where it is silent."""
    layers = range(hub["num_hidden_layers"])
    full = (hub.get(_LISTED) or {}).get("full_attn_layers", [i + 1 for i in layers[4::4]])
    return [FULL if i + 1 in full else LINEAR for i in layers]


def _listed(key: str, default: int) -> Callable[[Mapping[str, Any]], Any]:
    return lambda hub: (hub.get(_LISTED) or {}).get(key, default)


HUB = deepseek.near_deepseek(
    "kimi_linear",
    kimi_linear,
    "num_experts num_shared mlp_types mixers",
    settings={**dict.fromkeys(("theta", "scaling", "first_dense"), ...), **_SETTINGS},
    tensors=_tensors,
    fixed={"mla_use_nope": (True,), "moe_router_activation_func": ("sigmoid",)},
    defaults={"layer_types": _kinds, "mlp_layer_types": deepseek.listed_dense_first}
    | {key: _listed(*listed) for key, listed in _SIZES.items()},
    known=f"{_LISTED} first_k_dense_replace rope_theta use_grouped_topk",
)


def kimi_linear_48b_a3b() -> fdl.Config[Trainer]:
    """49 billion parameters, 3.5 billion per token."""
    sizes = {"hidden_dim": 2304, "num_layers": 27, "num_heads": 32, "ffn_dim": 9216}
    return kimi_linear(**sizes, vocab_size=163_840)

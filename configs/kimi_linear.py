"""Kimi Linear (Kimi Team, 2025, arXiv:2510.26692): three delta nets per latent attention."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fiddle as fdl
from torch import Tensor

from fidgpt.configs import deepseek
from fidgpt.configs.hub import LAYER, Family, Form, Piece, Stacked, without
from fidgpt.configs.hybrids import LINEAR, READINGS, by_layer, of_mixer, use_mixers
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL
from fidgpt.fiddlers import use_no_positions
from fidgpt.model import KimiDeltaNet, LatentAttention, RMSNorm
from fidgpt.train import Trainer


@variant_of(deepseek.latent, query_rank=None, seq_len=1_048_576, eps=1e-5)
def kimi_linear(
    cfg: fdl.Config[Trainer],
    *,
    num_layers: int,
    eps: float,
    expert_ffn_dim: int = 1024,
    num_experts: int = 256,
    num_shared: int = 1,
    top_k: int = 8,
    mlp_types: Sequence[str] | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
    normalize: bool = True,
    route_scale: float = 2.446,
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
    first = 1 if mlp_types is None else deepseek.first_dense_of(mlp_types)
    sizes = (expert_ffn_dim, num_shared, normalize, route_scale)
    deepseek.mix(cfg, num_experts, top_k, first, *sizes)
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


_MLP = f"{LAYER}.block_sparse_moe"
_NAMES = {
    **{f"{one}_filter": f"{one[0]}_conv1d" for one in ("query", "key", "value")},
    **{"timestep.down": "f_a_proj", "timestep.up": "f_b_proj", "decay.bias": "dt_bias"},
    **{"gate.down": "g_a_proj", "gate.up": "g_b_proj", "beta": "b_proj", "norm": "o_norm"},
    **{one: f"{one[0]}_proj" for one in ("query", "key", "value", "out")},
}


def _tensors(settings: Mapping[str, Any]) -> dict[str, str | Form]:
    names = {path: f"{LAYER}.self_attn.{name}" for path, name in _NAMES.items()}
    linear = {**names, "decay.log_rate": _ByHead(f"{LAYER}.self_attn.A_log")}
    full = {
        "query": f"{LAYER}.self_attn.q_proj",
        "kv_down": f"{LAYER}.self_attn.kv_a_proj_with_mqa",
    }
    experts = {"gate": "w1", "up": "w3", "down": "w2"}
    layers, kinds = settings["num_layers"], settings["mixers"]
    mixture = {
        "mlp.router": "gate",
        "mlp.router.selection_bias.bias": "gate.e_score_correction_bias",
        **{f"mlp.shared.{one}": f"shared_experts.{one}_proj" for one in experts},
    }
    return {
        **deepseek.tensors(settings),
        **{f"blocks.*.{path}": f"{_MLP}.{name}" for path, name in mixture.items()},
        **{
            f"blocks.*.mlp.experts.{one}": Stacked(f"{_MLP}.experts.{{expert}}.{name}.weight")
            for one, name in experts.items()
        },
        **by_layer(kinds or _mixers(layers), layers, {LINEAR: linear, FULL: full}),
    }


def _of_delta(name: str) -> Any:
    return of_mixer(KimiDeltaNet, lambda mixer: getattr(mixer, name))


def _of_latent(name: str) -> Any:
    return of_mixer(LatentAttention, lambda mixer: getattr(mixer, name))


_LISTED = "linear_attn_config"  # of published files: kinds and sizes of layers, counted from 1
_FIRST_DENSE = "first_k_dense_replace"


def _kinds(found: Mapping[str, Any]) -> list[str]:
    """Return the kinds of layers of a config.json, which are transformers' where it is silent."""
    layers = range(found["num_hidden_layers"])
    full = (found.get(_LISTED) or {}).get("full_attn_layers", [i + 1 for i in layers[4::4]])
    return [FULL if i + 1 in full else LINEAR for i in layers]


def _listed(key: str, default: int) -> Callable[[Mapping[str, Any]], Any]:
    return lambda found: (found.get(_LISTED) or {}).get(key, default)


HUB = Family(
    model_type="kimi_linear",
    architecture="KimiLinearForCausalLM",
    config=kimi_linear,
    settings={
        **without(deepseek.SETTINGS, "theta", "scaling", "first_dense"),
        "seq_len": "model_max_length",
        "num_experts": "num_experts",
        "num_shared": "num_shared_experts",
        "top_k": "num_experts_per_token",
        "num_groups": "num_expert_group",
        "normalize": "moe_renormalize",
        "mlp_types": "mlp_layer_types",
        "mixers": "layer_types",
        "delta_heads": "linear_num_heads",
        "delta_head_dim": "linear_head_dim",
        "filter_size": "linear_conv_kernel_dim",
    },
    tensors=_tensors,
    fixed={
        **deepseek.FIXED,
        "mla_use_nope": (True,),
        "moe_router_activation_func": ("sigmoid",),
    },
    defaults={
        "layer_types": _kinds,
        "mlp_layer_types": lambda found: deepseek.dense_first(found, found.get(_FIRST_DENSE, 1)),
        "linear_num_heads": _listed("num_heads", 32),
        "linear_head_dim": _listed("head_dim", 128),
        "linear_conv_kernel_dim": _listed("short_conv_kernel_size", 4),
    },
    readings={
        **{name: _of_latent(name) for name in ("num_heads", "head_dim", "kv_rank")},
        **{name: _of_latent(name) for name in ("rope_head_dim", "value_head_dim")},
        "num_kv_heads": _of_latent("num_heads"),
        "query_rank": of_mixer(
            LatentAttention, lambda mixer: getattr(mixer.query_down, "out_features", None)
        ),
        "attention_bias": of_mixer(LatentAttention, lambda mixer: mixer.out.bias is not None),
        "mlp_types": deepseek.mlp_types_of,
        "mixers": READINGS["mixers"],
        "delta_heads": _of_delta("num_heads"),
        "delta_head_dim": _of_delta("head_dim"),
        "filter_size": of_mixer(KimiDeltaNet, lambda mixer: mixer.key_filter.kernel_size[0]),
    },
    known=(
        *(*deepseek.KNOWN, _LISTED, _FIRST_DENSE),
        *("rope_theta", "use_grouped_topk", "num_nextn_predict_layers"),
    ),
)


def kimi_linear_48b_a3b() -> fdl.Config[Trainer]:
    """49 billion parameters, 3.5 billion per token."""
    sizes = {"hidden_dim": 2304, "num_layers": 27, "num_heads": 32, "ffn_dim": 9216}
    return kimi_linear(**sizes, vocab_size=163_840)

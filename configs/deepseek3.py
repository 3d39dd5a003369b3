"""DeepSeek V3 (2024, arXiv:2412.19437): like V2, with loss-free balancing of experts.

Its multi-token prediction is omitted, as in transformers; `use_mtp` adds it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import fiddle as fdl

from fidgpt.configs import deepseek
from fidgpt.configs.hub import SILU, Family, Paired, Tensors, without
from fidgpt.configs.variant import variant_of
from fidgpt.graph import find
from fidgpt.model import Indexer, LatentAttention, YaRN
from fidgpt.train import Trainer

_EXPERTS = {"num_experts": 256, "num_shared": 1, "top_k": 8, "expert_ffn_dim": 2048}


@variant_of(deepseek.deepseek, first_dense=3, normalize=True, route_scale=2.5, **_EXPERTS)
def v3(cfg: fdl.Config[Trainer], *, num_groups: int = 8, top_groups: int = 4) -> None:
    """A decoder with a sigmoid router, and expert groups ranked by their two best experts."""
    deepseek.use_sigmoids(cfg, num_groups, top_groups)


HUB = Family(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    config=v3,
    settings={**deepseek.SETTINGS, "normalize": "norm_topk_prob"},
    tensors=deepseek.tensors,
    fixed={
        **deepseek.FIXED,
        "rope_interleave": (True,),
        "topk_method": ("noaux_tc",),
        "scoring_func": ("sigmoid",),
    },
    constants={"num_nextn_predict_layers": 0},
    known=deepseek.KNOWN,
    ignored=("model.layers.61.*",),
)
KIMI_K2 = replace(HUB, model_type="kimi_k2", ignored=())
YOUTU = Family(
    model_type="youtu",
    architecture="YoutuForCausalLM",
    config=deepseek.latent,
    settings=deepseek.LATENT,
    tensors=deepseek.tensors,
    fixed={**SILU, "rope_interleave": (True,)},
    defaults={"tie_word_embeddings": True},
    known=("head_dim", "qk_head_dim"),
)


@variant_of(v3, query_rank=1536)
def sparse(
    cfg: fdl.Config[Trainer],
    *,
    index_heads: int = 64,
    index_dim: int = 128,
    index_top_k: int = 2048,
) -> None:
    """V3 with attention to `index_top_k` keys, which small heads select."""
    for attention in find(cfg.model, LatentAttention):
        sizes = {"num_heads": index_heads, "head_dim": index_dim, "top_k": index_top_k}
        attention.indexer = fdl.Partial(Indexer, **sizes)


_INDEXER = "model.layers.*.self_attn.indexer"


def _sparse_tensors(settings: Mapping[str, Any]) -> Tensors:
    names = {"query": "wq_b", "key": "wk", "key_norm": "k_norm", "weight": "weights_proj"}
    indexer = {f"blocks.*.attention.indexer.{path}": name for path, name in names.items()}
    return {
        **deepseek.tensors(settings),
        **{path: f"{_INDEXER}.{name}" for path, name in indexer.items()},
    }


def _glm_tensors(settings: Mapping[str, Any]) -> Tensors:
    """Return the same tensors, where adjacent rotary rows of indexers are paired too."""
    turning, paired = settings["rope_head_dim"], ("query", "key", "key_norm")
    rest = settings["index_dim"] - turning
    tensors = dict(_sparse_tensors(settings))
    for path in (f"blocks.*.attention.indexer.{name}" for name in paired):
        tensors[path] = Paired(tensors[path], 0, turning, rest)
    return tensors


_NOT_READ = ("rope_interleave", "layer_types")  # of attributes that its class does not have
V32 = replace(
    HUB,
    model_type="deepseek_v32",
    architecture="DeepseekV32ForCausalLM",
    config=sparse,
    settings={**HUB.settings, "index_heads": "index_n_heads", "index_dim": "index_head_dim"}
    | {"index_top_k": "index_topk", "mlp_types": "mlp_layer_types"},
    tensors=_sparse_tensors,
    fixed={**without(HUB.fixed, "rope_interleave"), "mlp_bias": (False,)},
    readings={
        "mlp_types": deepseek.mlp_types_of,
        "index_heads": attrgetter("blocks.0.attention.indexer.num_heads"),
        "index_dim": attrgetter("blocks.0.attention.indexer.head_dim"),
        "index_top_k": attrgetter("blocks.0.attention.indexer.top_k"),
    },
    known=(*HUB.known, *_NOT_READ),
)


@variant_of(sparse, num_groups=1, top_groups=1, query_rank=2048, head_dim=192, index_heads=32)
def glm5(cfg: fdl.Config[Trainer], *, index_kinds: Sequence[str] = ()) -> None:
    """GLM-5: V3.2 with other sizes.

    Raises:
      ValueError: a layer takes the keys that another one has selected.
    """
    if {*index_kinds} - {"full"}:
        raise ValueError(f"{index_kinds=} must all be full: a layer selects its own keys.")


def _index_kinds(found: Mapping[str, Any]) -> list[str] | None:
    pattern = found.get("index_topk_pattern")
    if pattern is None:
        return ["shared"] if found.get("index_topk_freq", 1) > 1 else ["full"]
    return [{"F": "full", "S": "shared"}.get(kind, kind) for kind in pattern]


GLM5 = replace(
    V32,
    model_type="glm_moe_dsa",
    architecture="GlmMoeDsaForCausalLM",
    config=glm5,
    settings={**V32.settings, "index_kinds": "indexer_types"},
    tensors=_glm_tensors,
    defaults={"v_head_dim": 256, "rms_norm_eps": 1e-5, "indexer_types": _index_kinds},
    readings={**V32.readings, "index_kinds": lambda model: ["full"] * len(model.blocks)},
    known=(*V32.known, "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"),
    ignored=("model.layers.78.*",),
)


def deepseek_v3() -> fdl.Config[Trainer]:
    """671 billion parameters, 38 billion per token."""
    longer = fdl.Config(YaRN, factor=40.0, original_seq_len=4096, amplitude=1.0, sharpness=1.0)
    sizes = {"hidden_dim": 7168, "num_layers": 61, "num_heads": 128, "ffn_dim": 18_432}
    return v3(**sizes, vocab_size=129_280, scaling=longer)

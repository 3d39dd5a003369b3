"""DeepSeek V3 (2024, arXiv:2412.19437): like V2, with loss-free balancing of experts.

Its multi-token prediction is omitted, as in transformers; `use_mtp` adds it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import fiddle as fdl

from fidgpt.configs import deepseek
from fidgpt.configs.hub import LAYER, Paired, Tensors
from fidgpt.configs.variant import variant_of
from fidgpt.graph import find
from fidgpt.model import Indexer, LatentAttention, YaRN
from fidgpt.train import Trainer

_EXPERTS = {"num_experts": 256, "num_shared": 1, "top_k": 8, "expert_ffn_dim": 2048}


@variant_of(deepseek.deepseek, first_dense=3, normalize=True, route_scale=2.5, **_EXPERTS)
def v3(cfg: fdl.Config[Trainer], *, num_groups: int = 8, top_groups: int = 4) -> None:
    """A decoder with a sigmoid router, and expert groups ranked by their two best experts."""
    deepseek.use_sigmoids(cfg, num_groups, top_groups)


HUB = deepseek.near_deepseek(
    "deepseek_v3",
    v3,
    "normalize",
    fixed={"rope_interleave": (True,), "topk_method": ("noaux_tc",), "scoring_func": ("sigmoid",)},
    constants={"num_nextn_predict_layers": 0},
    ignored=("model.layers.61.*",),
)
KIMI_K2 = replace(HUB, model_type="kimi_k2", ignored=())
YOUTU = deepseek.near_latent(
    "youtu", fixed={"rope_interleave": (True,)}, defaults={"tie_word_embeddings": True}
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


_INDEXER = {
    f"blocks.*.attention.indexer.{path}": f"{LAYER}.self_attn.indexer.{name}"
    for path, name in (
        *(("query", "wq_b"), ("key", "wk"), ("key_norm", "k_norm")),
        ("weight", "weights_proj"),
    )
}
V32 = HUB.near(
    "deepseek_v32",
    sparse,
    "mlp_types",
    settings={"index_heads": "index_n_heads", "index_dim": "index_head_dim"}
    | {"index_top_k": "index_topk"},
    tensors=_INDEXER,
    fixed={"rope_interleave": ..., "mlp_bias": (False,)},
    known=("rope_interleave", "layer_types"),  # which its class does not have as such
)


@variant_of(sparse, num_groups=1, top_groups=1, query_rank=2048, head_dim=192, index_heads=32)
def glm5(cfg: fdl.Config[Trainer], *, index_kinds: Sequence[str] = ()) -> None:
    """GLM-5: V3.2 with other sizes.

    Raises:
      ValueError: a layer takes the keys that another one has selected.
    """
    if {*index_kinds} - {"full"}:
        raise ValueError(f"{index_kinds=} must all be full: a layer selects its own keys.")


def _index_kinds(hub: Mapping[str, Any]) -> list[str]:
    pattern = hub.get("index_topk_pattern")
    if pattern is None:
        return ["shared"] if hub.get("index_topk_freq", 1) > 1 else ["full"]
    return ["full" if kind in ("F", "full") else "shared" for kind in pattern]


def _paired(settings: Mapping[str, Any]) -> Tensors:
    """Return the tensors of indexers, in which adjacent rotary rows form a pair."""
    turning = settings["rope_head_dim"]
    rest = settings["index_dim"] - turning
    return {
        path: Paired(name, 0, turning, rest)
        for path, name in _INDEXER.items()
        if not path.endswith("weight")
    }


GLM5 = V32.near(
    "glm_moe_dsa",
    glm5,
    settings={"index_kinds": "indexer_types"},
    tensors=_paired,
    defaults={"v_head_dim": 256, "rms_norm_eps": 1e-5, "indexer_types": _index_kinds},
    readings={"index_kinds": lambda model: ["full"] * len(model.blocks)},
    known=("index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"),
    ignored=("model.layers.78.*",),
)


def deepseek_v3() -> fdl.Config[Trainer]:
    """671 billion parameters, 38 billion per token."""
    longer = fdl.Config(YaRN, factor=40.0, original_seq_len=4096, amplitude=1.0, sharpness=1.0)
    sizes = {"hidden_dim": 7168, "num_layers": 61, "num_heads": 128, "ffn_dim": 18_432}
    return v3(**sizes, vocab_size=129_280, scaling=longer)

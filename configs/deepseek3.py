"""DeepSeek V3 (2024, arXiv:2412.19437): like V2, with loss-free balancing of experts.

Its multi-token prediction is omitted, as in transformers; `use_mtp` adds it.
"""

from dataclasses import replace

import fiddle as fdl

from fidgpt.configs import deepseek
from fidgpt.configs.hub import SILU, Family
from fidgpt.configs.variant import variant_of
from fidgpt.model import YaRN
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


def deepseek_v3() -> fdl.Config[Trainer]:
    """671 billion parameters, 38 billion per token."""
    longer = fdl.Config(YaRN, factor=40.0, original_seq_len=4096, amplitude=1.0, sharpness=1.0)
    sizes = {"hidden_dim": 7168, "num_layers": 61, "num_heads": 128, "ffn_dim": 18_432}
    return v3(**sizes, vocab_size=129_280, scaling=longer)

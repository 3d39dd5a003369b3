"""DeepSeek V3 (2024, arXiv:2412.19437): V2's parts, and experts balanced without a loss.

Its further prediction is left out, as transformers leaves it; `use_mtp` adds one.
"""

import fiddle as fdl

from fidgpt.configs import deepseek
from fidgpt.configs.hub import Family
from fidgpt.model import YaRN
from fidgpt.train import Trainer

HUB = Family(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    config=deepseek.deepseek,
    settings={**deepseek.SETTINGS, "normalize": "norm_topk_prob"},
    tensors=deepseek.tensors,
    fixed={
        **deepseek.FIXED,
        "rope_interleave": (True,),
        "topk_method": (deepseek.LOSS_FREE,),
        "scoring_func": ("sigmoid",),
    },
    defaults={"norm_topk_prob": True, "routed_scaling_factor": 2.5, "q_lora_rank": 1536},
    readings=deepseek.READINGS,
    says={"num_nextn_predict_layers": 0},
    spare=("model.layers.61.*",),
)


def deepseek_v3() -> fdl.Config[Trainer]:
    """671 billion parameters, 38 billion a token."""
    longer = fdl.Config(YaRN, factor=40.0, original_seq_len=4096)
    return deepseek.deepseek(
        normalize=True, route_scale=2.5, scaling=longer, mscale=1.0, mscale_all_dim=1.0
    )

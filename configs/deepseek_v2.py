"""DeepSeek V2 (2024, arXiv:2405.04434): latent attention, and experts chosen by a softmax."""

from typing import Any

import fiddle as fdl

from fidgpt.configs import deepseek
from fidgpt.configs.hub import Family
from fidgpt.model import YaRN
from fidgpt.train import Trainer


def _selection(model: Any) -> str:
    groups = deepseek.mixture(model).router.groups
    return deepseek.GREEDY if groups is None else deepseek.GROUP_LIMITED


HUB = Family(
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    config=deepseek.deepseek,
    settings={**deepseek.SETTINGS, "selection": "topk_method"},
    tensors=deepseek.tensors,
    fixed={
        **deepseek.FIXED,
        "mlp_bias": (False,),
        "norm_topk_prob": (False,),
        "scoring_func": ("softmax",),
    },
    defaults={"topk_method": deepseek.GREEDY, "q_lora_rank": 1536},
    readings={**deepseek.READINGS, "selection": _selection},
)


def deepseek_v2_lite() -> fdl.Config[Trainer]:
    """16 billion parameters, 2.7 billion a token."""
    return _deepseek_v2(
        hidden_dim=2048, num_layers=27, num_heads=16, ffn_dim=10_944, expert_ffn_dim=1408
    )


def _deepseek_v2(**sizes: Any) -> fdl.Config[Trainer]:
    return deepseek.deepseek(
        **sizes,
        query_rank=None,
        num_experts=64,
        num_shared=2,
        top_k=6,
        first_dense=1,
        selection=deepseek.GREEDY,
        vocab_size=102_400,
        scaling=fdl.Config(YaRN, factor=40.0, original_seq_len=4096),
        mscale=0.707,
        mscale_all_dim=0.707,
    )

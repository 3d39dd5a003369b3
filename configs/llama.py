"""Llama 2, 3, 3.1 and 3.2 (Touvron et al., 2023; Grattafiori et al., 2024, arXiv:2407.21783)."""

from dataclasses import replace
from functools import partial

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.model import Llama3Scaling
from fidgpt.train import Trainer

_llama2 = partial(decoder, vocab_size=32_000, seq_len=4096)
_llama3 = partial(decoder, num_kv_heads=8, vocab_size=128_256, seq_len=8192, theta=500_000.0)
HUB = family(
    "llama", None, "attention_bias mlp_bias", defaults={"rms_norm_eps": 1e-6}, whole_heads=True
)
# Models of InternLM 3 and IQuest, which transformers computes as Llama.
INTERNLM3 = replace(
    HUB,
    model_type="internlm3",
    aliases={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
    defaults={"num_key_value_heads": 2},
)
IQUESTCODER = replace(HUB, model_type="iquestcoder", defaults={"num_key_value_heads": 8})


def llama2_7b() -> fdl.Config[Trainer]:
    """6.7 billion parameters."""
    return _llama2(hidden_dim=4096, num_layers=32, num_heads=32, ffn_dim=11_008)


def llama2_13b() -> fdl.Config[Trainer]:
    """13 billion parameters."""
    return _llama2(hidden_dim=5120, num_layers=40, num_heads=40, ffn_dim=13_824)


def llama2_70b() -> fdl.Config[Trainer]:
    """69 billion parameters."""
    return _llama2(hidden_dim=8192, num_layers=80, num_heads=64, num_kv_heads=8, ffn_dim=28_672)


def llama3_8b() -> fdl.Config[Trainer]:
    """8.0 billion parameters."""
    return _llama3(hidden_dim=4096, num_layers=32, num_heads=32, ffn_dim=14_336)


def llama3_70b() -> fdl.Config[Trainer]:
    """71 billion parameters."""
    return _llama3(hidden_dim=8192, num_layers=80, num_heads=64, ffn_dim=28_672)


def llama3_1_8b() -> fdl.Config[Trainer]:
    """Llama 3 8B for sequences of 131,072 tokens."""
    return _longer(llama3_8b())


def llama3_1_70b() -> fdl.Config[Trainer]:
    """Llama 3 70B for sequences of 131,072 tokens; 3.3 has its architecture."""
    return _longer(llama3_70b())


def llama3_1_405b() -> fdl.Config[Trainer]:
    """406 billion parameters."""
    return _longer(_llama3(hidden_dim=16_384, num_layers=126, num_heads=128, ffn_dim=53_248))


def llama3_2_1b() -> fdl.Config[Trainer]:
    """1.2 billion parameters, tied embeddings."""
    cfg = _llama3(hidden_dim=2048, num_layers=16, num_heads=32, ffn_dim=8192, tied=True)
    return _longer(cfg, factor=32.0)


def llama3_2_3b() -> fdl.Config[Trainer]:
    """3.2 billion parameters, tied embeddings."""
    cfg = _llama3(hidden_dim=3072, num_layers=28, num_heads=24, ffn_dim=8192, tied=True)
    return _longer(cfg, factor=32.0)


def _longer(cfg: fdl.Config[Trainer], factor: float = 8.0) -> fdl.Config[Trainer]:
    """Use the RoPE scaling of Llama 3.1 and 3.2, for sequences of 131,072 tokens."""
    cfg.seq_len = 131_072
    cfg.model.blocks[0].attention.rope.scaling = fdl.Config(
        Llama3Scaling, factor=factor, original_seq_len=8192
    )
    return cfg

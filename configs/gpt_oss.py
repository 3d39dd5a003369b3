"""gpt-oss (OpenAI, 2025, arXiv:2508.10925): experts with biases, a window in every second layer."""

from collections.abc import Sequence
from operator import attrgetter

import fiddle as fdl

from fidgpt.configs import gemma, mixtral
from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import TENSORS, Family, Interleaved, Transposed
from fidgpt.fiddlers import use_moe, use_sinks
from fidgpt.graph import find
from fidgpt.model import Attention, ClampedSwiGLU, GatedExperts, Router, YaRN
from fidgpt.train import Trainer


def gpt_oss(
    *,
    num_layers: int,
    num_experts: int,
    hidden_dim: int = 2880,
    num_heads: int = 64,
    num_kv_heads: int = 8,
    head_dim: int = 64,
    ffn_dim: int = 2880,
    top_k: int = 4,
    vocab_size: int = 201_088,
    seq_len: int = 131_072,
    window: int | None = 128,
    layer_types: Sequence[str] = (gemma.SLIDING, gemma.FULL),
    limit: float = 7.0,
    theta: float = 150_000.0,
    scaling: fdl.Config | None = None,
    eps: float = 1e-5,
    tied: bool = False,
) -> fdl.Config[Trainer]:
    """A decoder whose heads may look at nothing, and whose experts keep within `limit`."""
    cfg = decoder(
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_dim=ffn_dim,
        vocab_size=vocab_size,
        seq_len=seq_len,
        windows=gemma.windows_of(layer_types, window),
        theta=theta,
        scaling=scaling,
        eps=eps,
        tied=tied,
    )
    use_sinks(cfg)
    use_moe(cfg, num_experts=num_experts, top_k=top_k)
    for part in find(cfg.model, Attention, Router, GatedExperts):
        part.bias = True
    for experts in find(cfg.model, GatedExperts):
        experts.gating = fdl.Config(ClampedSwiGLU, limit=limit)
    return cfg


_OLD_LENGTH, _YARN = "original_max_position_embeddings", {"factor": 32.0, "truncate": False}
_UP, _DOWN = (f"model.layers.*.mlp.experts.{name}_proj" for name in ("gate_up", "down"))
HUB = Family(
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    config=gpt_oss,
    settings={
        **mixtral.HUB.settings,
        "layer_types": "layer_types",
        "limit": "swiglu_limit",
    },
    tensors={
        **TENSORS,
        "blocks.*.attention.sinks": "model.layers.*.self_attn.sinks",
        "blocks.*.mlp.router": "model.layers.*.mlp.router",
        "blocks.*.mlp.experts.gate": Transposed(Interleaved(_UP, 0, 2)),
        "blocks.*.mlp.experts.up": Transposed(Interleaved(_UP, 1, 2)),
        "blocks.*.mlp.experts.down": Transposed(_DOWN),
        "blocks.*.mlp.experts.gate_bias": Interleaved(f"{_UP}_bias", 0, 2),
        "blocks.*.mlp.experts.up_bias": Interleaved(f"{_UP}_bias", 1, 2),
        "blocks.*.mlp.experts.down_bias": f"{_DOWN}_bias",
    },
    fixed={"hidden_act": ("silu",), "attention_bias": (True,), "swiglu_alpha": (1.702,)},
    defaults={"rope_scaling": {"rope_type": "yarn", _OLD_LENGTH: 4096, **_YARN}},
    readings={"limit": attrgetter("blocks.0.mlp.experts.gating.limit")},
)


def gpt_oss_20b() -> fdl.Config[Trainer]:
    """21 billion parameters, 4.2 billion a token."""
    longer = fdl.Config(YaRN, original_seq_len=4096, **_YARN)
    return gpt_oss(num_layers=24, num_experts=32, scaling=longer)


def gpt_oss_120b() -> fdl.Config[Trainer]:
    """117 billion parameters, 5.7 billion a token."""
    longer = fdl.Config(YaRN, original_seq_len=4096, **_YARN)
    return gpt_oss(num_layers=36, num_experts=128, scaling=longer)

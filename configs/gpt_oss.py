"""gpt-oss (OpenAI, 2025, arXiv:2508.10925): experts with biases, alternating sliding windows."""

import fiddle as fdl

from fidgpt.configs import mixtral
from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import EXPERT_ROWS, LAYER, Form, Interleaved, Transposed, transposed
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, SLIDING
from fidgpt.fiddlers import use_moe, use_sinks
from fidgpt.graph import find
from fidgpt.model import ClampedSwiGLU, GatedExperts, Router, YaRN
from fidgpt.train import Trainer


@variant_of(
    decoder,
    hidden_dim=2880,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    ffn_dim=2880,
    vocab_size=201_088,
    seq_len=131_072,
    theta=150_000.0,
    window=128,
    layer_types=(SLIDING, FULL),
    attention_bias=True,
)
def gpt_oss(
    cfg: fdl.Config[Trainer], *, num_experts: int, top_k: int = 4, limit: float = 7.0
) -> None:
    """A decoder with attention sinks, and experts with activations clamped at `limit`."""
    use_sinks(cfg)
    use_moe(cfg, num_experts=num_experts, top_k=top_k)
    for part in find(cfg.model, Router, GatedExperts):
        part.bias = True
    for experts in find(cfg.model, GatedExperts):
        experts.gating = fdl.Config(ClampedSwiGLU, limit=limit)


_OLD_LENGTH, _YARN = "original_max_position_embeddings", {"factor": 32.0, "truncate": False}
_UP, _DOWN = (f"{LAYER}.mlp.experts.{name}_proj" for name in ("gate_up", "down"))
_TENSORS: dict[str, str | Form] = {
    "blocks.*.attention.sinks": f"{LAYER}.self_attn.sinks",
    "blocks.*.mlp.router": f"{LAYER}.mlp.router",
    **transposed({rows: Interleaved(_UP, i, 2) for i, rows in enumerate(EXPERT_ROWS)}),
    **{f"{rows}_bias": Interleaved(f"{_UP}_bias", i, 2) for i, rows in enumerate(EXPERT_ROWS)},
    "blocks.*.mlp.experts.down": Transposed(_DOWN),
    "blocks.*.mlp.experts.down_bias": f"{_DOWN}_bias",
}
HUB = mixtral.HUB.near(
    "gpt_oss",
    gpt_oss,
    "layer_types attention_bias",
    settings={"limit": "swiglu_limit"},
    tensors=_TENSORS,
    fixed={"swiglu_alpha": (1.702,)},
    defaults={"rope_scaling": {"rope_type": "yarn", _OLD_LENGTH: 4096, **_YARN}},
    readings={"limit": "blocks.0.mlp.experts.gating.limit"},
    known=("experts_per_token", "initial_context_length"),  # say what other keys do
)


def gpt_oss_20b() -> fdl.Config[Trainer]:
    """21 billion parameters, 4.2 billion per token."""
    return gpt_oss(num_layers=24, num_experts=32, scaling=_longer())


def gpt_oss_120b() -> fdl.Config[Trainer]:
    """117 billion parameters, 5.7 billion per token."""
    return gpt_oss(num_layers=36, num_experts=128, scaling=_longer())


def _longer() -> fdl.Config[YaRN]:
    return fdl.Config(YaRN, original_seq_len=4096, **_YARN)

"""SmolLM, SmolLM2 (Allal et al., 2025, arXiv:2502.02737) and SmolLM3, with tied embeddings.

On the hub the first two are Llama models; the third has no RoPE in every fourth layer.
"""

from collections.abc import Sequence
from functools import partial

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import FULL, SLIDING, look_back, shortest_period
from fidgpt.fiddlers.patterns import repeated
from fidgpt.train import Trainer


@variant_of(
    decoder, num_heads=16, num_kv_heads=4, vocab_size=128_256, theta=2e6, eps=1e-6, tied=True
)
def smollm3(
    cfg: fdl.Config[Trainer],
    *,
    window: int | None,
    layer_types: Sequence[str] | None,
    nope_every: int = 4,
    roped: Sequence[int] | None = None,
) -> None:
    """A decoder without RoPE in each `nope_every`-th layer (NoPE, arXiv:2501.18795).

    `roped`, if given, lists whether each layer has one. Layers without RoPE use the window, unless
    `layer_types` is given.
    """
    pattern = shortest_period([1] * (nope_every - 1) + [0] if roped is None else roped)
    if layer_types is None:
        look_back(cfg, window, [FULL if has_rope else SLIDING for has_rope in pattern])
    cfg.model.blocks = repeated(cfg.model.blocks, len(pattern))
    for i, block in enumerate(cfg.model.blocks):
        if not pattern[i % len(pattern)]:
            block.attention.rope = None


HUB = family(
    "smollm3",
    smollm3,
    "window layer_types attention_bias mlp_bias roped nope_every",
    architecture="SmolLM3ForCausalLM",
    switches={"sliding_window": "use_sliding_window"},
    fixed={"use_sliding_window": (False, True)},
    known="max_window_layers",
)


_smollm = partial(decoder, vocab_size=49_152, seq_len=2048, tied=True)


def smollm_135m() -> fdl.Config[Trainer]:
    """135 million parameters."""
    return _smollm(hidden_dim=576, num_layers=30, num_heads=9, num_kv_heads=3, ffn_dim=1536)


def smollm_360m() -> fdl.Config[Trainer]:
    """362 million parameters."""
    return _smollm(hidden_dim=960, num_layers=32, num_heads=15, num_kv_heads=5, ffn_dim=2560)


def smollm_1_7b() -> fdl.Config[Trainer]:
    """1.7 billion parameters."""
    return _smollm(hidden_dim=2048, num_layers=24, num_heads=32, ffn_dim=8192)


def smollm2_135m() -> fdl.Config[Trainer]:
    """smollm_135m for sequences of 8,192 tokens."""
    return _longer(smollm_135m(), theta=100_000.0)


def smollm2_360m() -> fdl.Config[Trainer]:
    """smollm_360m for sequences of 8,192 tokens."""
    return _longer(smollm_360m(), theta=100_000.0)


def smollm2_1_7b() -> fdl.Config[Trainer]:
    """smollm_1_7b for sequences of 8,192 tokens."""
    return _longer(smollm_1_7b(), theta=130_000.0)


def smollm3_3b() -> fdl.Config[Trainer]:
    """3.1 billion parameters, for sequences of 65,536 tokens."""
    return smollm3(hidden_dim=2048, num_layers=36, ffn_dim=11_008, seq_len=65_536, theta=5e6)


def _longer(cfg: fdl.Config[Trainer], *, theta: float) -> fdl.Config[Trainer]:
    cfg.seq_len = 8192
    cfg.model.blocks[0].attention.rope.theta = theta
    return cfg

"""Mistral (Jiang et al., 2023, arXiv:2310.06825) and its larger successors."""

import fiddle as fdl

from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import SETTINGS, TENSORS, Family
from fidgpt.train import Trainer


def mistral(
    *,
    hidden_dim: int,
    num_layers: int,
    ffn_dim: int,
    vocab_size: int,
    seq_len: int,
    num_heads: int = 32,
    num_kv_heads: int = 8,
    head_dim: int | None = None,
    window: int | None = 4096,
    theta: float = 10_000.0,
    scaling: fdl.Config | None = None,
    eps: float = 1e-6,
    tied: bool = False,
) -> fdl.Config[Trainer]:
    """A decoder whose layers all look back `window` tokens, or as far as there are any."""
    return decoder(
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_dim=ffn_dim,
        vocab_size=vocab_size,
        seq_len=seq_len,
        windows=[window],
        theta=theta,
        scaling=scaling,
        eps=eps,
        tied=tied,
    )


HUB = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    config=mistral,
    settings={**SETTINGS, "window": "sliding_window"},
    tensors=TENSORS,
    fixed={"hidden_act": ("silu",)},
)


def mistral_7b() -> fdl.Config[Trainer]:
    """7.2 billion parameters: version 0.1, with its window of 4,096 tokens."""
    return _mistral_7b(vocab_size=32_000, window=4096, theta=10_000.0)


def mistral_7b_v0_3() -> fdl.Config[Trainer]:
    """The same without a window, with a larger table and a larger base of RoPE."""
    return _mistral_7b(vocab_size=32_768, window=None, theta=1e6)


def mistral_nemo_12b() -> fdl.Config[Trainer]:
    """12 billion parameters; queries are narrower than the stream."""
    return _with_large_table(ffn_dim=14_336, seq_len=1_024_000, theta=1e6)


def mistral_small_24b() -> fdl.Config[Trainer]:
    """24 billion parameters: Mistral Small 3."""
    return _with_large_table(ffn_dim=32_768, seq_len=32_768, theta=1e8)


def _mistral_7b(*, vocab_size: int, window: int | None, theta: float) -> fdl.Config[Trainer]:
    return mistral(
        hidden_dim=4096,
        num_layers=32,
        ffn_dim=14_336,
        vocab_size=vocab_size,
        seq_len=32_768,
        window=window,
        theta=theta,
        eps=1e-5,
    )


def _with_large_table(*, ffn_dim: int, seq_len: int, theta: float) -> fdl.Config[Trainer]:
    return mistral(
        hidden_dim=5120,
        num_layers=40,
        head_dim=128,
        ffn_dim=ffn_dim,
        vocab_size=131_072,
        seq_len=seq_len,
        window=None,
        theta=theta,
        eps=1e-5,
    )

"""The sizes of the models that are compared, and of their batches."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The size of a model and of its batches.

    Attributes:
      config: fidgpt's config of that family.
      batch_size: sequences of a step, on a CPU.
      has_learned_positions: GPT-2's parts, with biases; else RoPE, RMSNorm and SwiGLU.
      is_tied: whether one table reads and scores tokens.
      is_apart: too large for all contestants to be in memory at a time.
      num_experts: experts of a mixture in place of each MLP, of width `ffn_dim`; 0 for MLPs.
      top_k: experts of a token.
      says: directives for what differs from the config in more than depth, vocabulary and batch.
      peers: which contestants have a model of the kind.
    """

    config: str
    hidden_dim: int
    ffn_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    seq_len: int
    batch_size: int
    has_learned_positions: bool = False
    is_tied: bool = True
    is_apart: bool = False
    num_experts: int = 0
    top_k: int = 0
    says: tuple[str, ...] = ()
    peers: tuple[str, ...] = ("PyTorch", "transformers")

    def directives(self, batch_size: int) -> list[str]:
        """What makes fidgpt's config this shape."""
        said = {
            "model.num_layers": self.num_layers,
            "vocab_size": self.vocab_size,
            "seq_len": self.seq_len,
            "batch_size": batch_size,
        }
        sets = (f"set:{path}={value}" for path, value in said.items())
        return [f"config:{self.config}", *self.says, *sets]


def _gpt2(*, seq_len: int, batch_size: int) -> Shape:
    return Shape(
        config="gpt2_124m",
        hidden_dim=768,
        ffn_dim=3072,
        num_layers=12,
        num_heads=12,
        num_kv_heads=12,
        vocab_size=50_257,
        seq_len=seq_len,
        batch_size=batch_size,
        has_learned_positions=True,
    )


def _tiny(*, config: str, ffn_dim: int, has_learned_positions: bool = False) -> Shape:
    sizes = ("set:model.hidden_dim=128", "set:model.blocks[0].attention.head_dim=32")
    return Shape(
        config=config,
        hidden_dim=128,
        ffn_dim=ffn_dim,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        vocab_size=257,
        seq_len=64,
        batch_size=12,
        has_learned_positions=has_learned_positions,
        says=("fiddler:use_bytes", *sizes),
    )


def _mixture(*, num_experts: int, top_k: int, ffn_dim: int, says: tuple[str, ...] = ()) -> Shape:
    return Shape(
        config="base",
        hidden_dim=256,
        ffn_dim=ffn_dim,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        vocab_size=8192,
        seq_len=256,
        batch_size=2,
        num_experts=num_experts,
        top_k=top_k,
        peers=("OLMoE",),
        says=(f"fiddler:use_moe({num_experts}, top_k={top_k}, ffn_dim={ffn_dim})", *says),
    )


SHAPES = {
    # Nearly a million parameters on bytes, as small as nanoGPT's example for a laptop.
    "bytes_1m": _tiny(config="base", ffn_dim=384),
    # As large, of GPT-2's components.
    "gpt2_1m": _tiny(config="gpt2_124m", ffn_dim=512, has_learned_positions=True),
    "base": Shape(
        config="base",
        hidden_dim=256,
        ffn_dim=704,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        vocab_size=1024,
        seq_len=128,
        batch_size=8,
    ),
    "gpt2_124m": _gpt2(seq_len=256, batch_size=2),
    "gpt2_124m_1024": _gpt2(seq_len=1024, batch_size=1),
    # Two layers of thirty-two, with a sixteenth of the vocabulary: weights, gradients and AdamW's
    # averages of the whole one would take 24 GB.
    "llama3_8b_slice": Shape(
        config="llama3_8b",
        hidden_dim=4096,
        ffn_dim=14_336,
        num_layers=2,
        num_heads=32,
        num_kv_heads=8,
        vocab_size=8016,
        seq_len=256,
        batch_size=1,
        is_tied=False,
        is_apart=True,
    ),
    # Mixtures of 15.7 million parameters, of few wide experts and of many narrow ones.
    "mixture": _mixture(num_experts=16, top_k=4, ffn_dim=256),
    "mixture_shared": _mixture(
        num_experts=16, top_k=4, ffn_dim=256, says=("fiddler:use_shared_expert",)
    ),
    "mixture_64": _mixture(num_experts=64, top_k=8, ffn_dim=64),
}

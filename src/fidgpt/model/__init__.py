"""Parts of a decoder, as plain torch modules."""

from fidgpt.model.attention import Attention
from fidgpt.model.embedding import Embedding, LearnedPositions, Unembedding, token_table
from fidgpt.model.init import Constant, DepthScaled, Init, Normal
from fidgpt.model.kernels import Kernel, blockwise, causal_attention, sdpa
from fidgpt.model.language_model import LanguageModel
from fidgpt.model.linear import Linear
from fidgpt.model.materialize import initialize, materialize
from fidgpt.model.mlp import GELU, SwiGLU, gated_ffn_dim, multiple_of
from fidgpt.model.norm import RMSNorm
from fidgpt.model.rope import RoPE
from fidgpt.model.rope_scaling import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    RoPEScaling,
    YaRN,
)
from fidgpt.model.transformer import Block, Transformer

__all__ = [
    "GELU",
    "Attention",
    "Block",
    "Constant",
    "DepthScaled",
    "Embedding",
    "Init",
    "Kernel",
    "LanguageModel",
    "LearnedPositions",
    "Linear",
    "LinearScaling",
    "Llama3Scaling",
    "NTKScaling",
    "Normal",
    "RMSNorm",
    "RoPE",
    "RoPEScaling",
    "SwiGLU",
    "Transformer",
    "Unembedding",
    "YaRN",
    "blockwise",
    "causal_attention",
    "gated_ffn_dim",
    "initialize",
    "materialize",
    "multiple_of",
    "sdpa",
    "token_table",
]

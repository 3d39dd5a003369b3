"""A decoder as one writes it by hand in PyTorch: the model of nanoGPT's size and style.

GPT-2's components (LayerNorm, learned positions, biases, GELU) or Llama's (RMSNorm, RoPE, SwiGLU,
no biases), with one product for queries, keys and values and `scaled_dot_product_attention`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from shapes import Shape
from torch import Tensor, nn

ROPE_BASE = 10_000.0


class Attention(nn.Module):
    """Causal attention of as many heads as the shape has."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.hidden_dim // shape.num_heads
        self.heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        self.qkv = nn.Linear(
            shape.hidden_dim, sum(self.heads) * self.head_dim, bias=shape.has_learned_positions
        )
        self.out = nn.Linear(shape.hidden_dim, shape.hidden_dim, bias=shape.has_learned_positions)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        """Map [batch, seq, hidden] to the same shape."""
        joined = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        query, key, value = joined.split(self.heads, dim=1)
        if rotation is not None:
            query, key = rotated(query, *rotation), rotated(key, *rotation)
        grouped = self.heads[0] != self.heads[1]
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=grouped
        )
        return self.out(mixed.transpose(1, 2).flatten(2))


class GeluMLP(nn.Module):
    """Two layers with GELU between."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden_dim, shape.ffn_dim)
        self.down = nn.Linear(shape.ffn_dim, shape.hidden_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, seq, hidden] to the same shape."""
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class SwiGLU(nn.Module):
    """Three layers, one of which gates another."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden_dim, shape.ffn_dim, bias=False)
        self.up = nn.Linear(shape.hidden_dim, shape.ffn_dim, bias=False)
        self.down = nn.Linear(shape.ffn_dim, shape.hidden_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, seq, hidden] to the same shape."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside a residual path."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = norm(shape), norm(shape)
        self.attention = Attention(shape)
        self.mlp = GeluMLP(shape) if shape.has_learned_positions else SwiGLU(shape)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        """Map [batch, seq, hidden] to the same shape."""
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Tokens [batch, seq] to logits [batch, seq, vocabulary]."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_dim)
        self.positions: nn.Embedding | None = None
        if shape.has_learned_positions:
            self.positions = nn.Embedding(shape.seq_len, shape.hidden_dim)
        else:
            half = shape.hidden_dim // shape.num_heads // 2
            rates = ROPE_BASE ** (-torch.arange(half) / half)
            angles = torch.arange(shape.seq_len)[:, None] * rates
            self.register_buffer("cosines", angles.cos(), persistent=False)
            self.register_buffer("sines", angles.sin(), persistent=False)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = norm(shape)
        self.head = nn.Linear(shape.hidden_dim, shape.vocab_size, bias=False)
        if shape.is_tied:
            self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every position."""
        x = self.embedding(tokens)
        rotation: Any = None
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        else:
            rotation = self.cosines[: tokens.shape[1]], self.sines[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, rotation)
        return self.head(self.norm(x))


def norm(shape: Shape) -> nn.Module:
    """Of the family of the shape."""
    return (nn.LayerNorm if shape.has_learned_positions else nn.RMSNorm)(shape.hidden_dim)


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """RoPE of x [batch, heads, seq, head_dim] by tables [seq, head_dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    cosines, sines = cosines.to(x.dtype), sines.to(x.dtype)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)

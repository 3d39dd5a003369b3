"""Tokens in, scores out: the token table, the two parts that use it, and learned positions."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from fidgpt.model.init import GPT2_NORMAL, Init, carry


def token_table(*, vocab_size: int, hidden_dim: int, init: Init = GPT2_NORMAL) -> nn.Parameter:
    """One vector for each token, as a parameter of shape [vocab_size, hidden_dim].

    It is a part of its own so that `Embedding` and `Unembedding` can hold the same one (Press and
    Wolf, 2017, https://arxiv.org/abs/1608.05859): weights are tied by sharing, never by a flag.
    """
    return carry(nn.Parameter(torch.empty(vocab_size, hidden_dim)), init)


class LearnedPositions(nn.Module):
    """A learned vector for each position, added to the token's (GPT-2)."""

    def __init__(self, *, seq_len: int, hidden_dim: int, init: Init = GPT2_NORMAL) -> None:
        super().__init__()
        self.weight = carry(nn.Parameter(torch.empty(seq_len, hidden_dim)), init)

    def forward(self, x: Float[Tensor, "batch seq hidden"]) -> Float[Tensor, "batch seq hidden"]:
        """Adds the first `seq` positions.

        Raises:
          ValueError: the sequence is longer than the table.
        """
        seq, seq_len = x.shape[1], self.weight.shape[0]
        if seq > seq_len:
            raise ValueError(
                f"a sequence of {seq} tokens is longer than the {seq_len} learned positions; "
                "shorten it, or train with a larger seq_len or with use_rope."
            )
        return x + self.weight[:seq]


class Embedding(nn.Module):
    """Looks up each token's vector, and adds its position where `positions` is given."""

    def __init__(self, weight: nn.Parameter, *, positions: nn.Module | None = None) -> None:
        super().__init__()
        self.weight = weight
        self.positions = positions

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq hidden"]:
        x = F.embedding(tokens, self.weight)
        return x if self.positions is None else self.positions(x)


class Unembedding(nn.Module):
    """Scores every token of the table against a feature: `logits = x W^T`."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch vocab"]:
        return F.linear(x, self.weight)

    def own_flops_per_token(self, seq_len: int) -> int:
        """Forward floating-point operations of one token, a multiply-add counted as two."""
        return 2 * self.weight.numel()

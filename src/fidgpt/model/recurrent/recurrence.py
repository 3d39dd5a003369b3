"""Linear recurrences over tokens, `S_t = decay_t S_(t-1) + k_t v_t`, with and without delta rule.

A head has a state S of [key_dim, value_dim]. Query and key heads may be shared by consecutive value
heads. With a rate `beta`, the delta rule writes what the state does not predict yet, `beta_t (v_t -
(decay_t S_(t-1))^T k_t)` in place of `v_t`. Tokens are computed in chunks, of which each is a few
matrix products (Yang et al., 2023, arXiv:2312.06635; 2024, arXiv:2406.06484 and 2412.06464), or one
by one.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from fidgpt.model.recurrent.segments import Segments, spread

__all__ = ["Recurrence", "by_chunks", "by_tokens"]

Queries = Float[Tensor, "batch seq key_heads key_dim"]
Values = Float[Tensor, "batch seq heads value_dim"]
LogDecay = Float[Tensor, "batch seq heads decays"]
Rates = Float[Tensor, "batch seq heads"]
State = Float[Tensor, "batch heads key_dim value_dim"]
Chunks = Float[Tensor, "chunks batch key_heads _ tokens _"]  # of keys or heads, and of some size
Reachable = Bool[Tensor, "_ _ 1 1 _ _"]

_SUB_CHUNK = 16  # tokens whose decays per channel are multiplied pair by pair


@runtime_checkable
class Recurrence(Protocol):
    """Computes the states of all tokens, and reads each of them by its query."""

    def __call__(
        self,
        query: Queries,
        key: Queries,
        value: Values,
        log_decay: LogDecay,
        /,
        *,
        beta: Rates | None = None,
        state: State | None = None,
        segments: Segments | None = None,
    ) -> tuple[Values, State]:
        """Return `S_t^T q_t` of each token, and the state after the last one.

        Args:
          query: reads the states.
          key: where values are written.
          value: what is written.
          log_decay: logarithm of the factor of the earlier state, at most 0: one for each head, or
            one for each row of the state.
          beta: rate of the delta rule; None writes the values as they are.
          state: the one before the first token; None for zeros.
          segments: documents, of which each begins with a state of zeros; None if no token but the
            first begins one.
        """
        ...


def by_tokens(
    query: Queries,
    key: Queries,
    value: Values,
    log_decay: LogDecay,
    *,
    beta: Rates | None = None,
    state: State | None = None,
    segments: Segments | None = None,
) -> tuple[Values, State]:
    """Compute one token after another, by the definition."""
    if segments is not None:
        key, log_decay = map(segments.without_padding, (key, log_decay))
        log_decay = torch.where(spread(segments.begins, log_decay), float("-inf"), log_decay)
    query, key = (x.repeat_interleave(value.shape[2] // x.shape[2], 2) for x in (query, key))
    state = _zeros(key, value) if state is None else state
    decay, outs = log_decay.exp().unsqueeze(-1), []
    for t in range(value.shape[1]):
        state = state * decay[:, t]
        row, written = key[:, t].unsqueeze(-1), value[:, t].unsqueeze(-2)
        if beta is not None:
            written = (written - row.mT @ state) * beta[:, t, :, None, None]
        state = state + row * written
        outs.append((query[:, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outs, dim=1), state


def by_chunks(
    query: Queries,
    key: Queries,
    value: Values,
    log_decay: LogDecay,
    *,
    beta: Rates | None = None,
    state: State | None = None,
    segments: Segments | None = None,
    chunk_size: int = 64,
) -> tuple[Values, State]:
    """Compute chunks of tokens, all at once but for the states between them."""
    seq, shared = value.shape[1], key.shape[2]
    state = _zeros(key, value) if state is None else state
    if segments is not None:
        key, log_decay = map(segments.without_padding, (key, log_decay))
    size = min(chunk_size, -(-seq // _SUB_CHUNK) * _SUB_CHUNK)
    query, key, value, log_decay = (
        _chunks(x, size, shared) for x in (query, key, value, log_decay)
    )
    reach = _Reach.of(segments, value)
    total = log_decay.cumsum(-2)  # from the begin of a chunk to each token, inclusive
    at_token = _masked_exp(total, reach.entered)  # factor of the state before the chunk
    at_end = _masked_exp(total[..., -1:, :] - total, reach.left)  # of what a token writes
    pairs = _Pairs(key, total, reach.visible)
    scores, unread = pairs(query), None
    if beta is not None:
        rates = _chunks(beta.unsqueeze(-1), size, shared)
        written = torch.cat([value * rates, key * at_token * rates], dim=-1)
        overlaps = pairs(key) * rates
        solved = torch.linalg.solve_triangular(overlaps, written, upper=False, unitriangular=True)
        value, unread = solved.split([value.shape[-1], key.shape[-1]], dim=-1)
    key, kept = (key * at_end).mT, at_token[..., -1, :].unsqueeze(-1)
    state = state.unflatten(1, (shared, -1))
    states, values = [], []
    for chunk in range(len(value)):
        fresh = value[chunk] if unread is None else value[chunk] - unread[chunk] @ state
        states.append(state)
        values.append(fresh)
        state = kept[chunk] * state + key[chunk] @ fresh
    out = scores @ torch.stack(values) + (query * at_token) @ torch.stack(states)
    return out.permute(1, 0, 4, 2, 3, 5).flatten(3, 4).flatten(1, 2)[:, :seq], state.flatten(1, 2)


def _zeros(key: Queries, value: Values) -> State:
    return value.new_zeros(len(value), value.shape[2], key.shape[-1], value.shape[-1])


def _chunks(x: Float[Tensor, "batch seq heads size"], size: int, shared: int) -> Chunks:
    """Return tokens in chunks, the last one filled with zeros, that change no state."""
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % size))
    return x.unflatten(1, (-1, size)).unflatten(3, (shared, -1)).permute(1, 0, 3, 4, 2, 5)


class _Reach(NamedTuple):
    """Between which tokens of a chunk nothing begins; None where that is sure.

    Attributes:
      visible: whether a token sees another one of its chunk.
      entered: whether a token sees the state before its chunk.
      left: whether the state after the chunk sees a token.
    """

    visible: Reachable
    entered: Reachable | None = None
    left: Reachable | None = None

    @classmethod
    def of(cls, segments: Segments | None, chunks: Chunks) -> "_Reach":
        """Return what tokens of chunks of some documents see."""
        size = chunks.shape[-2]
        causal = torch.ones(1, 1, 1, 1, size, size, dtype=torch.bool, device=chunks.device).tril()
        if segments is None:
            return cls(causal)
        numbers = segments.numbers
        last = numbers[:, -1:].expand(-1, -numbers.shape[1] % size)
        numbers = torch.cat([numbers, last], dim=1).unflatten(1, (-1, size)).transpose(0, 1)
        numbers = numbers[:, :, None, None, :, None]
        ends = numbers[..., -1:, :]
        before = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
        return cls(causal & (numbers == numbers.mT), numbers == before, numbers == ends)


class _Pairs:
    """Products of vectors of tokens with earlier keys of their chunk, times the decay between them.

    Args:
      key: the keys.
      total: sums of logarithmic decays from the begin of the chunk to each token.
      visible: which keys a token sees.
    """

    def __init__(self, key: Chunks, total: Chunks, visible: Reachable) -> None:
        self.key, self.total, self.visible = key, total, visible
        self.decay = _masked_exp(total - total.mT, visible) if total.shape[-1] == 1 else None

    def __call__(self, x: Chunks) -> Chunks:
        if self.decay is not None:
            return (x @ self.key.mT) * self.decay
        return self._by_channel(x)

    def _by_channel(self, x: Chunks) -> Chunks:
        """Multiply with a decay for each channel.

        No exponent is above 0, so that nothing overflows: the decay to a token of an earlier
        sub-chunk is a product of those to and from the first token of the later one.
        """
        later, first = self._split(self.total), self._split(self.total)[..., :1, :]
        rows = self._split(x) * (later - first).exp()
        columns = self.key.unsqueeze(-3) * (first - self.total.unsqueeze(-3)).clamp_max(0).exp()
        apart = (rows @ columns.mT).unflatten(-1, (-1, _SUB_CHUNK))
        causal = self.visible.new_ones(_SUB_CHUNK, _SUB_CHUNK).tril().unsqueeze(-1)
        decay = _masked_exp(later.unsqueeze(-2) - later.unsqueeze(-3), causal)
        near = (self._split(x).unsqueeze(-2) * decay * self._split(self.key).unsqueeze(-3)).sum(-1)
        is_near = torch.eye(near.shape[-3], dtype=torch.bool, device=x.device)[:, None, :, None]
        pairs = torch.where(is_near, near.unsqueeze(-2), apart).flatten(-2).flatten(-3, -2)
        return torch.where(self.visible, pairs, 0.0)

    @staticmethod
    def _split(x: Chunks) -> Tensor:
        return x.unflatten(-2, (-1, _SUB_CHUNK))


def _masked_exp(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return exp, or 0 where a mask is false, whose exponent may be too large."""
    return (x if mask is None else x.masked_fill(~mask, float("-inf"))).exp()

"""Linear recurrences in chunks of tokens; each chunk is a few matrix products.

See Yang et al., 2023, arXiv:2312.06635; 2024, arXiv:2406.06484 and 2412.06464.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from fidgpt.model.recurrent.recurrence import State, Steps, Values, zero_state
from fidgpt.model.recurrent.segments import Segments

__all__ = ["by_chunks"]

Chunks = Float[Tensor, "chunks batch key_heads _ tokens _"]  # of keys or heads, and of some size
Reachable = Bool[Tensor, "_ _ 1 1 _ _"]

_SUB_CHUNK = 16  # tokens whose decays per channel are multiplied pair by pair


def by_chunks(steps: Steps, *, chunk_size: int | None = None) -> tuple[Values, State]:
    """Compute chunks of tokens, all at once but for the states between them."""
    query, key, value, log_decay, beta, state, segments = steps
    seq, shared = value.shape[1], key.shape[2]
    state = zero_state(key, value) if state is None else state
    if segments is not None:
        key, log_decay = map(segments.without_padding, (key, log_decay))
    size = min(chunk_size or _chunk_size(key.shape[-1]), -(-seq // _SUB_CHUNK) * _SUB_CHUNK)
    query, key, value, log_decay = (
        _chunks(x, size, shared) for x in (query, key, value, log_decay)
    )
    total = log_decay.cumsum(-2)  # from the begin of a chunk to each token, inclusive
    rates = None if beta is None else _chunks(beta.unsqueeze(-1), size, shared)
    state, reach = state.unflatten(1, (shared, -1)), _Reach.of(segments, value)
    out, last = _Chunked.apply(query, key, value, total, rates, state, *reach)
    return out.permute(1, 0, 4, 2, 3, 5).flatten(3, 4).flatten(1, 2)[:, :seq], last.flatten(1, 2)


def _chunk_size(key_dim: int) -> int:
    """Return the number of tokens whose products take about as long as the states' products."""
    return 32 if key_dim <= 64 else 64


def _chunks(x: Float[Tensor, "batch seq heads size"], size: int, shared: int) -> Chunks:
    """Return tokens in chunks, the last one filled with zeros, that change no state."""
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % size))
    chunks = x.unflatten(1, (-1, size)).unflatten(3, (shared, -1)).permute(1, 0, 3, 4, 2, 5)
    return chunks.contiguous()


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


class _Chunked(torch.autograd.Function):
    """Outputs of chunks and the last state, and their gradients.

    With the products P of queries and B of keys with earlier keys, tokens write `m = v - B m - K S`
    and read `out = P m + Q S`, where keys K and queries Q are decayed since the state S before the
    chunk. The sum of decays until a token multiplies what it reads by, and divides what it writes:
    its gradient is `q dq + k dk` of reading minus `k dk` of writing, without a gradient of P or B.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Chunks,
        key: Chunks,
        value: Chunks,
        total: Chunks,
        rates: Chunks | None,
        state: Tensor,
        *reach: Any,
    ) -> tuple[Tensor, Tensor]:
        pairs = _Pairs(key, total, rates, _Reach(*reach))
        scores, fresh, overlaps, unread = pairs(query), value, None, None
        if rates is not None:
            overlaps = pairs(key)
            fresh, unread = _solve(
                overlaps, torch.cat([value, key * pairs.at_token], dim=-1), transpose=False
            ).split([value.shape[-1], key.shape[-1]], dim=-1)
        states, written, writer = [state], [], pairs.writer.mT
        for chunk in range(len(value)):
            new = fresh[chunk] if unread is None else fresh[chunk] - unread[chunk] @ states[-1]
            states.append(pairs.kept[chunk] * states[-1] + writer[chunk] @ new)
            written.append(new)
        writing, before = torch.stack(written), torch.stack(states)
        out = scores @ writing + (query * pairs.at_token) @ before[:-1]
        inputs = (query, key, total, rates, *reach)
        ctx.save_for_backward(*inputs, scores, overlaps, unread, writing, before)
        return out, states[-1]

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        query, key, total, rates, *reach, scores, overlaps, unread, writing, states = (
            ctx.saved_tensors
        )
        pairs = _Pairs(key, total, rates, _Reach(*reach))
        of_out, of_states, of_written = outer[0], [outer[1]], []
        direct, read = scores.mT @ of_out, (query * pairs.at_token).mT @ of_out
        for chunk in reversed(range(len(direct))):
            of_written.append(direct[chunk] + pairs.writer[chunk] @ of_states[-1])
            of_state = pairs.kept[chunk] * of_states[-1] + read[chunk]
            if unread is not None:
                of_state = of_state - unread[chunk].mT @ of_written[-1]
            of_states.append(of_state)
        of_value, ends = torch.stack(of_written[::-1]), torch.stack(of_states[-2::-1])
        of_query, of_key = pairs.gradients(query, of_out @ writing.mT)
        of_query = of_query + (of_out @ states[:-1].mT) * pairs.at_token
        of_key = of_key + (writing @ ends.mT) * pairs.at_end
        of_total, of_rates = query * of_query - key * of_key, None
        if rates is not None:
            of_value = _solve(overlaps, of_value, transpose=True)
            of_reader, of_earlier = pairs.gradients(key, (of_value @ writing.mT).tril(-1))
            of_reader = of_reader + (of_value @ states[:-1].mT) * pairs.at_token
            of_total = of_total - key * (of_reader - of_earlier)
            of_key = of_key - (of_reader + of_earlier)
            least = torch.finfo(rates.dtype).tiny
            of_rates = (writing * of_value).sum(-1, keepdim=True) / rates.clamp_min(least)
        last = (states[1:] * ends).sum(-1).unsqueeze(-2)
        if pairs.is_scalar:
            of_total, last = of_total.sum(-1, keepdim=True), last.sum(-1, keepdim=True)
        of_total = torch.cat([of_total[..., :-1, :], of_total[..., -1:, :] + last], dim=-2)
        of_query, of_key = (x.sum(3, keepdim=True) for x in (of_query, of_key))
        return of_query, of_key, of_value, of_total, of_rates, of_states[-1], None, None, None


def _solve(products: Chunks, x: Chunks, *, transpose: bool) -> Chunks:
    """Return `(1 + lower triangle)^-1 x`; from the right, as torch then copies less."""
    matrix = products if transpose else products.mT
    solved = torch.linalg.solve_triangular(
        matrix, x.mT, upper=not transpose, left=False, unitriangular=True
    )
    return solved.mT


class _Pairs:
    """Products of vectors of tokens with earlier keys of their chunk, as far as these are left.

    Args:
      key: the keys.
      total: sums of logarithmic decays from the begin of the chunk to each token.
      rates: factors of the keys when they write; None for 1.
      reach: what tokens see.

    Attributes:
      at_token: share of the state before the chunk that is left at each token.
      at_end: share of each key that is left at the end of the chunk.
      writer: keys as they are added to the state at the end.
      kept: share of each row of the state that is left at the end.
    """

    def __init__(self, key: Chunks, total: Chunks, rates: Chunks | None, reach: _Reach) -> None:
        self.key, self.total, self.visible = key, total, reach.visible
        self.is_scalar = total.shape[-1] == 1
        self.at_token = _masked_exp(total, reach.entered)
        self.at_end = _masked_exp(total[..., -1:, :] - total, reach.left)
        self.factor = _masked_exp(total - total.mT, reach.visible) if self.is_scalar else None
        if rates is not None:
            self.at_end = self.at_end * rates
            self.factor = rates.mT if self.factor is None else self.factor * rates.mT
        self.writer = key * self.at_end
        self.kept = self.at_token[..., -1, :].unsqueeze(-1)

    def __call__(self, x: Chunks) -> Chunks:
        products = x @ self.key.mT if self.is_scalar else self._by_channel(x)
        return products if self.factor is None else products * self.factor

    def gradients(self, x: Chunks, outer: Chunks) -> tuple[Chunks, Chunks]:
        """Return the gradients of `x` and of the keys, from the gradients of the products."""
        outer = outer if self.factor is None else outer * self.factor
        return (outer @ self.key, outer.mT @ x) if self.is_scalar else self._of_channels(x, outer)

    def _by_channel(self, x: Chunks) -> Chunks:
        """Multiply with a decay for each channel.

        No exponent is above 0, so that nothing overflows: the decay to a token of an earlier
        sub-chunk is a product of those to and from the first token of the later one.
        """
        since, until, near = self._by_sub_chunk()
        apart = (self._split(x) * since) @ (self.key.unsqueeze(-3) * until).mT
        inside = (self._split(x).unsqueeze(-2) * near * self._split(self.key).unsqueeze(-3)).sum(-1)
        apart = apart.unflatten(-1, (-1, _SUB_CHUNK))
        pairs = torch.where(self._is_near, inside.unsqueeze(-2), apart)
        return torch.where(self.visible, pairs.flatten(-2).flatten(-3, -2), 0.0)

    def _of_channels(self, x: Chunks, outer: Chunks) -> tuple[Chunks, Chunks]:
        since, until, near = self._by_sub_chunk()
        outer = self._split(torch.where(self.visible, outer, 0.0)).unflatten(-1, (-1, _SUB_CHUNK))
        apart = torch.where(self._is_near, 0.0, outer).flatten(-2)
        inside = outer.diagonal(dim1=-4, dim2=-2).movedim(-1, -3).unsqueeze(-1) * near
        of_x = (apart @ (self.key.unsqueeze(-3) * until)) * since
        of_key = ((apart.mT @ (self._split(x) * since)) * until).sum(-3)
        of_x = of_x + (inside * self._split(self.key).unsqueeze(-3)).sum(-2)
        of_near = (inside * self._split(x).unsqueeze(-2)).sum(-3)
        return of_x.flatten(-3, -2), of_key + of_near.flatten(-3, -2)

    def _by_sub_chunk(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return decays since the begins of sub-chunks, until them, and inside."""
        later = self._split(self.total)
        first = later[..., :1, :]
        causal = self.visible.new_ones(_SUB_CHUNK, _SUB_CHUNK).tril().unsqueeze(-1)
        near = _masked_exp(later.unsqueeze(-2) - later.unsqueeze(-3), causal)
        until = (first - self.total.unsqueeze(-3)).clamp_max(0).exp()
        return (later - first).exp(), until, near

    @property
    def _is_near(self) -> Tensor:
        """Which sub-chunks are the same one."""
        number = self.key.shape[-2] // _SUB_CHUNK
        return torch.eye(number, dtype=torch.bool, device=self.key.device)[:, None, :, None]

    @staticmethod
    def _split(x: Chunks) -> Tensor:
        return x.unflatten(-2, (-1, _SUB_CHUNK))


def _masked_exp(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return exp, or 0 where a mask is false, whose exponent may be too large."""
    return (x if mask is None else x.masked_fill(~mask, float("-inf"))).exp()

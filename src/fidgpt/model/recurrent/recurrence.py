"""Linear recurrences over tokens, `S_t = decay_t S_(t-1) + k_t v_t`, with and without delta rule.

A head has a state S of [key_dim, value_dim]. Query and key heads may be shared by consecutive value
heads. With a rate `beta`, the delta rule writes what the state does not predict yet, `beta_t (v_t -
(decay_t S_(t-1))^T k_t)` in place of `v_t`.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.context import AttentionContext
from fidgpt.model.recurrent.segments import Segments, spread

__all__ = ["Recurrence", "Steps", "by_tokens"]

Queries = Float[Tensor, "batch seq key_heads key_dim"]
Values = Float[Tensor, "batch seq heads value_dim"]
LogDecay = Float[Tensor, "batch seq heads decays"]
Rates = Float[Tensor, "batch seq heads"]
State = Float[Tensor, "batch heads key_dim value_dim"]


class Steps(NamedTuple):
    """What a recurrence is computed from.

    Attributes:
      query: reads the states.
      key: where values are written.
      value: vectors to write.
      log_decay: logarithm of the factor of the earlier state, at most 0: one for each head, or one
        for each row of the state.
      beta: rate of the delta rule; None writes the values as they are.
      state: the one before the first token; None for zeros.
      segments: documents, each of which begins with a state of zeros; None if no token but the
        first begins one.
    """

    query: Queries
    key: Queries
    value: Values
    log_decay: LogDecay
    beta: Rates | None = None
    state: State | None = None
    segments: Segments | None = None


@runtime_checkable
class Recurrence(Protocol):
    """Computes the states of all tokens, and reads each of them by its query."""

    def __call__(self, steps: Steps, /) -> tuple[Values, State]:
        """Return `S_t^T q_t` of each token, and the state after the last one."""
        ...


def recur(owner: nn.Module, compute: Recurrence, ctx: AttentionContext, steps: Steps) -> Values:
    """Return what the queries of a mixer read, and keep its state for the next pass.

    Args:
      owner: the mixer.
      compute: its recurrence.
      ctx: context of the tokens.
      steps: what whole rows are computed from, but for the state and the segments.
    """
    state, segments = next(iter(ctx.state(owner)), None), Segments.of(ctx.rows)
    out, state = compute(steps._replace(state=state, segments=segments))
    ctx.keep_state(owner, [state])
    return out


def by_tokens(steps: Steps) -> tuple[Values, State]:
    """Compute one token after another, by the definition."""
    query, key, value, log_decay, beta, state, segments = steps
    if segments is not None:
        key, log_decay = map(segments.without_padding, (key, log_decay))
        log_decay = torch.where(spread(segments.begins, log_decay), float("-inf"), log_decay)
    query, key = (x.repeat_interleave(value.shape[2] // x.shape[2], 2) for x in (query, key))
    state = zero_state(key, value) if state is None else state
    decay, outs = log_decay.exp().unsqueeze(-1), []
    for t in range(value.shape[1]):
        state = state * decay[:, t]
        row, written = key[:, t].unsqueeze(-1), value[:, t].unsqueeze(-2)
        if beta is not None:
            written = (written - row.mT @ state) * beta[:, t, :, None, None]
        state = state + row * written
        outs.append((query[:, t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outs, dim=1), state


def zero_state(key: Queries, value: Values) -> State:
    """Return the state before the first token."""
    return value.new_zeros(len(value), value.shape[2], key.shape[-1], value.shape[-1])

"""Which implementation computes a recurrence: chunks of torch's products, or kernels of a GPU."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from fidgpt.model.recurrent.chunks import by_chunks
from fidgpt.model.recurrent.recurrence import State, Steps, Values, by_tokens

__all__ = ["fastest_recurrence", "flash_linear"]


def fastest_recurrence(steps: Steps) -> tuple[Values, State]:
    """Call `by_tokens` for one token; for more `flash_linear` on GPUs, and else `by_chunks`."""
    if steps.value.is_cuda and steps.segments is None and _has_flash_linear():
        return flash_linear(steps)
    return by_chunks(steps) if steps.value.shape[1] > 1 else by_tokens(steps)


@cache
def _has_flash_linear() -> bool:
    return find_spec("fla") is not None and find_spec("triton") is not None


def flash_linear(steps: Steps) -> tuple[Values, State]:
    """Call the kernels of flash-linear-attention, which need a GPU; documents go to `by_chunks`.

    Raises:
      ImportError: flash-linear-attention is not installed.
    """
    query, key, value, log_decay, beta, state, segments = steps
    if segments is not None:
        return by_chunks(steps)
    is_scalar = log_decay.shape[-1] == 1
    if beta is None:
        name = "simple_gla" if is_scalar else "gla"
    else:
        name = "gated_delta_rule" if is_scalar else "kda"
    kernel: Any = getattr(import_module(f"fla.ops.{name}"), f"chunk_{name}")
    groups = value.shape[2] // key.shape[2]
    query, key, value = (x.bfloat16() for x in (query, key, value))
    query, key = (x.repeat_interleave(groups, 2) for x in (query, key))
    rates: dict[str, Tensor] = {} if beta is None else {"beta": beta}
    decay = log_decay.squeeze(-1) if is_scalar else log_decay
    out, last = kernel(
        query, key, value, g=decay, **rates, scale=1.0, initial_state=state, output_final_state=True
    )
    return out.float(), last

"""What is known of a run before its first step: its size, its cost and what it needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from fidgpt.cost import (
    ParameterCount,
    PlaceCost,
    cache_bytes,
    says_all_flops,
    unsaid_flops,
    with_zeros,
    without_memory,
)
from fidgpt.model.transformer import LanguageModel
from fidgpt.train.footprint import NEEDS_NUMBERS, Footprint
from fidgpt.train.parameter_groups import GroupFacts
from fidgpt.train.precision import Precision


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What will run.

    Attributes:
      parameters: of the model, a tied one counted once.
      trained_parameters: those that are trained.
      active_parameters: those that one token is computed with.
      shared: names of parameters that several modules hold, with their other names.
      flops_per_token: floating-point operations of a training step, per token.
      tokens: of the whole run.
      num_steps: optimizer steps of the whole run.
      tokens_per_step: tokens of a step with a full batch, over all processes.
      device: of this process.
      world_size: processes.
      precision: name of the class that sets the number format.
      peak_flops: peak performance of all devices in that format, per second.
      memory: what each device needs.
      memory_there: bytes that each device has; None if unknown.
      weights: what initialises the model; None if its weights are random.
      evaluators: names of the evaluators.
    """

    parameters: int
    trained_parameters: int
    active_parameters: int
    shared: Mapping[str, list[str]]
    flops_per_token: int
    tokens: int
    num_steps: int
    tokens_per_step: int
    device: torch.device
    world_size: int
    precision: str
    peak_flops: float
    memory: Footprint
    memory_there: int | None = None
    weights: str | None = None
    evaluators: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """Bytes of the KV cache in generation.

    Attributes:
      token: of one token, as long as every attention still sees all tokens.
      context: of a text as long as a training sequence.
      seq_len: tokens of that.
    """

    token: int
    context: int
    seq_len: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The facts of a run, and where its cost is.

    Attributes:
      facts: what every run shows.
      parameters: by how they are used.
      places: the cost of a token's forward pass, by place.
      runs_without_memory: whether the model could be run on the meta device to measure it.
      cache: of generation; None if the model needs the values of its tensors.
      groups: of parameters, as the optimizer treats them.
    """

    facts: Facts
    parameters: ParameterCount
    places: Sequence[PlaceCost]
    runs_without_memory: bool
    cache: CacheSize | None
    groups: Sequence[GroupFacts]


def measured_flops(model: LanguageModel, *, seq_len: int) -> dict[str, int] | None:
    """Return the FLOPs of modules that do not declare them; None if the model needs values."""
    device = torch.device("cpu")  # the count does not depend on it
    try:
        small = with_zeros(model, num_tokens=seq_len, device=device)
        if small is not None and says_all_flops(small, seq_len=seq_len):
            return {}
    except NEEDS_NUMBERS:
        pass
    try:
        return unsaid_flops(without_memory(model), seq_len=seq_len)
    except NEEDS_NUMBERS:
        return None


def cache_size(model: LanguageModel, precision: Precision, *, seq_len: int) -> CacheSize | None:
    """Return the size of the KV cache; None if the model needs the values of its tensors."""
    replica = precision.replica(without_memory(model)).eval()
    try:
        token, context = (cache_bytes(replica, context=count) for count in (1, seq_len))
    except NEEDS_NUMBERS:
        return None
    return CacheSize(token=token, context=context, seq_len=seq_len)


def call_text(function: Callable[..., object]) -> str:
    """Write a function and its bound arguments as a call."""
    if isinstance(function, partial):
        bound = ", ".join(f"{name}={value!r}" for name, value in function.keywords.items())
        return f"{call_text(function.func)}({bound})"
    return getattr(function, "__name__", type(function).__name__)


def tokens_text(facts: Facts) -> str:
    """Write the tokens of a run and of its steps, whose batches may grow."""
    even = facts.tokens == facts.num_steps * facts.tokens_per_step
    steps = f"{facts.num_steps:,} steps of {'' if even else 'up to '}{facts.tokens_per_step:,}"
    return f"{facts.tokens:,} = {steps}" if even else f"{facts.tokens:,} in {steps}"

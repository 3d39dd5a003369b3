"""What is known of a run before its first step."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fidgpt.train.footprint import Footprint


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What will run.

    Attributes:
      parameters: of the model, a tied one counted once.
      trained_parameters: those that learn.
      active_parameters: those that one token is computed with.
      shared: names of parameters that several modules hold, with their other names.
      flops_per_token: floating-point operations of a training step, per token.
      tokens: tokens of the whole run.
      num_steps: optimizer steps of the whole run.
      tokens_per_step: tokens of a step with a full batch, over all processes.
      device: the device of this process.
      world_size: processes.
      precision: name of the part that decides the number format.
      peak_flops: what the devices can do at best in that format, per second.
      memory: what each device needs.
      memory_there: bytes that each device has; None where that is not known.
      weights: what fills the model when the run begins; None where they are drawn.
      evaluators: names of what is measured from time to time.
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


def tokens_text(facts: Facts) -> str:
    """The tokens of a run and of its steps, whose batches may grow."""
    even = facts.tokens == facts.num_steps * facts.tokens_per_step
    steps = f"{facts.num_steps:,} steps of {'' if even else 'up to '}{facts.tokens_per_step:,}"
    return f"{facts.tokens:,} = {steps}" if even else f"{facts.tokens:,} in {steps}"

"""What is known of a run before its first step."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from fidgpt.model.cost import TRAINING_PASSES, flops_per_token, shared_parameters
from fidgpt.train.device import peak_flops
from fidgpt.train.precision import Precision


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What will run.

    Attributes:
      parameters: numbers to learn, a tied one counted once.
      shared: names of parameters that several modules hold, with their other names.
      flops_per_token: floating-point operations of a training step, per token.
      tokens: tokens of the whole run.
      num_steps: optimizer steps of the whole run.
      tokens_per_step: tokens of one step, over all processes.
      device: the device of this process.
      world_size: processes.
      precision: name of the part that decides the number format.
      peak_flops: what the devices can do at best in that format, per second.
    """

    parameters: int
    shared: Mapping[str, list[str]]
    flops_per_token: int
    tokens: int
    num_steps: int
    tokens_per_step: int
    device: torch.device
    world_size: int
    precision: str
    peak_flops: float


def gather_facts(
    model: nn.Module,
    *,
    seq_len: int,
    batch_size: int,
    num_steps: int,
    device: torch.device,
    world_size: int,
    precision: Precision,
) -> Facts:
    """Counts a model, on the meta device or with memory, and measures the device."""
    return Facts(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        shared=shared_parameters(model),
        flops_per_token=TRAINING_PASSES * flops_per_token(model, seq_len=seq_len),
        tokens=num_steps * batch_size * seq_len,
        num_steps=num_steps,
        tokens_per_step=batch_size * seq_len,
        device=device,
        world_size=world_size,
        precision=type(precision).__name__,
        peak_flops=world_size * peak_flops(device, precision.dtype),
    )

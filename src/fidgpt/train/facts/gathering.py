"""The facts of a trainer, counted before its first step."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch

from fidgpt.model.cost import (
    TRAINING_PASSES,
    count_parameters,
    flops_per_token,
    says_all_flops,
    shared_parameters,
    unsaid_flops,
    with_zeros,
    without_memory,
)
from fidgpt.model.language_model import LanguageModel
from fidgpt.train.device import Machine
from fidgpt.train.facts.facts import Facts
from fidgpt.train.facts.footprint import NEEDS_NUMBERS, footprint

if TYPE_CHECKING:
    from fidgpt.train.trainer import Trainer


def gather_facts(
    trainer: "Trainer", machine: Machine, *, unsaid: Mapping[str, int] | None = None
) -> Facts:
    """Counts a run whose model has memory or has none.

    Args:
      trainer: what runs.
      machine: what it would run on.
      unsaid: what `measured_flops` gave, for who knows it already.
    """
    model, seq_len = trainer.model, trainer.seq_len
    parameters = count_parameters(model)
    if unsaid is None:
        unsaid = measured_flops(model, seq_len=seq_len) or {}
    forward = flops_per_token(model, seq_len=seq_len) + sum(unsaid.values())
    tokens_per_step = trainer.batch_size * seq_len
    return Facts(
        parameters=parameters.total,
        trained_parameters=_trained(trainer),
        active_parameters=parameters.active,
        shared=shared_parameters(model),
        flops_per_token=TRAINING_PASSES * forward,
        tokens=round(trainer.data.full_batches(trainer.num_steps) * tokens_per_step),
        num_steps=trainer.num_steps,
        tokens_per_step=tokens_per_step,
        device=machine.device,
        world_size=machine.world_size,
        precision=type(trainer.precision).__name__,
        peak_flops=machine.peak_flops,
        memory=footprint(
            model,
            seq_len=seq_len,
            num_sequences=-(-trainer.batch_size // machine.world_size),
            micro_batch_size=trainer.micro_batch_size,
            optimizer=trainer.optimizer,
            groups=trainer.groups,
            trainable=trainer.trainable,
            loss=trainer.loss,
            precision=trainer.precision,
            average=trainer.average,
            device=machine.device,
        ).sharded(trainer.parallel.shards_of(machine.world_size)),
        memory_there=machine.memory,
        weights=None if trainer.weights is None else _call_text(trainer.weights),
        evaluators=tuple(trainer.evaluators),
    )


def _trained(trainer: "Trainer") -> int:
    """Numbers of the parameters that `train_only` would let learn; the model stays as it is."""
    learns = trainer.trainable or (lambda name, parameter: parameter.requires_grad)
    named = trainer.model.named_parameters()
    return sum(parameter.numel() for name, parameter in named if learns(name, parameter))


def _call_text(function: Callable[..., object]) -> str:
    """A function and what it will be called with, as one would write it."""
    if isinstance(function, partial):
        said = ", ".join(f"{name}={value!r}" for name, value in function.keywords.items())
        return f"{_call_text(function.func)}({said})"
    return getattr(function, "__name__", type(function).__name__)


def measured_flops(model: LanguageModel, *, seq_len: int) -> dict[str, int] | None:
    """What parts compute that say nothing of it, by module; None where the model needs numbers."""
    device = torch.device("cpu")  # where it is counted says nothing of what is
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

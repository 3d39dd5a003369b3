"""How much memory training takes on a device, found by a step that needs none."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fidgpt.cost import (
    ActivationBytes,
    activation_bytes,
    bytes_of,
    with_zeros,
    without_memory,
)
from fidgpt.model.transformer import LanguageModel
from fidgpt.optim.groups import Grouping, train_only
from fidgpt.train.averaging import Average
from fidgpt.train.loss import CrossEntropy, NextToken
from fidgpt.train.precision import Precision

# What a part raises that asks for the numbers of a tensor without memory, or for another device.
NEEDS_NUMBERS = (RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one device.

    Attributes:
      weights: the weights that the optimizer moves, and buffers.
      copy: the copy that computes; 0 where the weights themselves do.
      gradients: in the format of the computation.
      full_gradients: in that of the weights; the same ones where there is no copy.
      optimizer: what the optimizer remembers; None where its step needs numbers.
      average: of the weights; 0 where there is none, and None where its beginning needs numbers.
      activations: of a micro-batch; None where the model needs numbers.
      num_sequences: sequences of a micro-batch.
      is_split: whether a step has several, so that gradients wait for the next one.
    """

    weights: int
    copy: int
    gradients: int
    full_gradients: int
    optimizer: int | None
    average: int | None
    activations: ActivationBytes | None
    num_sequences: int
    is_split: bool

    def sharded(self, num_shards: int) -> "Footprint":
        """Where the model is dealt over devices, which hold no copy.

        What they gather, a block at a time and the tables, is not in it.
        """
        if num_shards == 1:
            return self
        return replace(
            self,
            weights=self.weights // num_shards,
            copy=0,
            gradients=self.full_gradients // num_shards,
            full_gradients=self.full_gradients // num_shards,
            optimizer=None if self.optimizer is None else self.optimizer // num_shards,
            average=None if self.average is None else self.average // num_shards,
        )

    @property
    def peak(self) -> int:
        """The most at any time: in a forward pass, or as the optimizer steps.

        What backward passes and optimizers need for a moment is not in it: some percent.
        """
        lasting = self.weights + self.copy + (self.optimizer or 0) + (self.average or 0)
        waiting = self.full_gradients if self.is_split else 0
        # Of the last micro-batch there are gradients in both formats, where there is a copy.
        both = waiting + (self.gradients if self.copy else 0)
        forward = waiting + sum(self.activations or ())
        return lasting + max(forward, both, self.gradients, self.full_gradients)


def footprint(
    model: LanguageModel,
    *,
    seq_len: int,
    num_sequences: int,
    micro_batch_size: int | None,
    optimizer: Callable[..., Optimizer],
    groups: Grouping,
    trainable: Callable[[str, nn.Parameter], bool] | None,
    loss: CrossEntropy,
    precision: Precision,
    average: Average | None,
    device: torch.device,
) -> Footprint:
    """Takes a step with a twin of the model that has no memory, and adds up what it would need.

    Args:
      model: on the meta device or with memory; it is left as it is.
      seq_len: tokens of a sequence.
      num_sequences: sequences of a step on this device.
      micro_batch_size: how many are computed at once; all of them unless said.
      optimizer: makes the optimizer from parameter groups.
      groups: deals the parameters into groups.
      trainable: whether a parameter is trained, by its name; None: as its `requires_grad` says.
      loss: from features, unembedding and targets to a number.
      precision: makes the copy that computes.
      average: of the weights, if there is one.
      device: where it would be.
    """
    at_once = min(micro_batch_size or num_sequences, num_sequences)
    small = with_zeros(model, num_tokens=at_once * seq_len, device=device)
    twin = without_memory(model) if small is None else small
    train_only(twin, trainable)
    replica = precision.replica(twin)
    activations = _activations(replica, loss, num_sequences=at_once, seq_len=seq_len, device=device)
    _give_gradients(replica)
    gradients = bytes_of(_gradients(replica))
    precision.pull_gradients(twin, replica)
    weights, all_weights = bytes_of(_tensors(twin)), bytes_of([*_tensors(twin), *_tensors(replica)])
    return Footprint(
        weights=weights,
        copy=all_weights - weights,
        gradients=gradients,
        full_gradients=bytes_of(_gradients(twin)),
        optimizer=_optimizer_state(twin, optimizer, groups),
        average=_average_state(twin, average),
        activations=activations,
        num_sequences=at_once,
        is_split=at_once < num_sequences,
    )


def _activations(
    replica: LanguageModel,
    loss: CrossEntropy,
    *,
    num_sequences: int,
    seq_len: int,
    device: torch.device,
) -> ActivationBytes | None:
    try:
        return activation_bytes(
            replica,
            NextToken(replica, loss),
            num_sequences=num_sequences,
            seq_len=seq_len,
            device=device,
        )
    except NEEDS_NUMBERS:
        if next(replica.parameters()).is_meta:
            return None
    return _activations(
        without_memory(replica), loss, num_sequences=num_sequences, seq_len=seq_len, device=device
    )


def _optimizer_state(
    model: nn.Module, optimizer: Callable[..., Optimizer], groups: Grouping
) -> int | None:
    """What an optimizer keeps once it has stepped."""
    try:
        stepping = optimizer(groups(model))
        stepping.step()
    except NEEDS_NUMBERS:
        return None
    return bytes_of(_held([*stepping.state.values()]))


def _average_state(model: nn.Module, average: Average | None) -> int | None:
    """What an average keeps once it has begun."""
    if average is None:
        return 0
    begun = copy.deepcopy(average)
    try:
        begun.begin(model)
    except NEEDS_NUMBERS:
        return None
    return bytes_of(_held([begun.state_dict()]))


def _give_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)


def _gradients(model: nn.Module) -> Iterator[Tensor]:
    return (parameter.grad for parameter in model.parameters() if parameter.grad is not None)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _held(values: Iterable[object]) -> Iterator[Tensor]:
    """Every tensor among some values, however deep in dicts and lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _held(value.values())
        elif isinstance(value, list | tuple):
            yield from _held(value)

"""How much memory training takes on a device, found by a step that needs none."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fidgpt.cost import ActivationBytes, activation_bytes, bytes_of, with_zeros, without_memory
from fidgpt.model.transformer import LanguageModel
from fidgpt.optim.groups import Grouping, train_only
from fidgpt.train.averaging import Average
from fidgpt.train.loss import CrossEntropy, NextToken
from fidgpt.train.precision import Precision

# Raised by components that read values of tensors on the meta device.
NEEDS_NUMBERS = (RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes on one device.

    Attributes:
      weights: the weights that the optimizer updates, and buffers.
      copy: the replica that computes; 0 if the weights themselves do.
      gradients: in the format of the computation.
      full_gradients: in that of the weights; the same ones if there is no replica.
      optimizer: its state; None if its step needs the values of tensors.
      average: of the weights; 0 if there is none, None if it needs the values of tensors.
      activations: of a micro-batch; None if the model needs the values of tensors.
      num_sequences: sequences of a micro-batch.
      is_split: whether a step has several micro-batches, so that gradients are kept between them.
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
        """Return the footprint of a model sharded over devices, without what they gather."""
        if num_shards == 1:
            return self

        def share(count: int | None) -> int | None:
            return None if count is None else count // num_shards

        return replace(
            self,
            weights=self.weights // num_shards,
            copy=0,
            gradients=self.full_gradients // num_shards,
            full_gradients=self.full_gradients // num_shards,
            optimizer=share(self.optimizer),
            average=share(self.average),
        )

    @property
    def peak(self) -> int:
        """The most at any time, without temporaries of backward passes and optimizers."""
        lasting = self.weights + self.copy + (self.optimizer or 0) + (self.average or 0)
        waiting = self.full_gradients if self.is_split else 0
        # The last micro-batch has gradients in both formats, if there is a replica.
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
    """Take a step with a copy of the model, and add up what it would need.

    Args:
      model: may be on the meta device, and is left unchanged.
      seq_len: tokens of a sequence.
      num_sequences: sequences of a step on this device.
      micro_batch_size: sequences that are computed at once; None for all of them.
      optimizer: makes the optimizer from parameter groups.
      groups: splits the parameters into groups.
      trainable: whether a parameter is trained, by its name; None keeps its `requires_grad`.
      loss: maps features, unembedding and targets to a number.
      precision: makes the replica that computes.
      average: of the weights, if there is one.
      device: where the model would train.
    """
    at_once = min(micro_batch_size or num_sequences, num_sequences)
    twin = with_zeros(model, num_tokens=at_once * seq_len, device=device) or without_memory(model)
    train_only(twin, trainable)
    replica = precision.replica(twin)
    activations = _known(
        lambda: activation_bytes(
            replica,
            NextToken(replica, loss),
            num_sequences=at_once,
            seq_len=seq_len,
            device=device,
        )
    )
    for parameter in replica.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    gradients = bytes_of(_gradients(replica))
    precision.pull_gradients(twin, replica)
    own = [*twin.parameters(), *twin.buffers()]
    weights = bytes_of(own)

    def optimizer_state() -> int:
        stepping = optimizer(groups(twin))
        stepping.step()
        return bytes_of(_tensors_in([*stepping.state.values()]))

    def average_state() -> int:
        begun = copy.deepcopy(average)
        if begun is None:
            return 0
        begun.begin(twin)
        return bytes_of(_tensors_in([begun.state_dict()]))

    return Footprint(
        weights=weights,
        copy=bytes_of([*own, *replica.parameters(), *replica.buffers()]) - weights,
        gradients=gradients,
        full_gradients=bytes_of(_gradients(twin)),
        optimizer=_known(optimizer_state),
        average=_known(average_state),
        activations=activations,
        num_sequences=at_once,
        is_split=at_once < num_sequences,
    )


T = TypeVar("T")


def _known(measure: Callable[[], T]) -> T | None:
    try:
        return measure()
    except NEEDS_NUMBERS:
        return None


def _gradients(model: nn.Module) -> Iterator[Tensor]:
    return (parameter.grad for parameter in model.parameters() if parameter.grad is not None)


def _tensors_in(values: Iterable[object]) -> Iterator[Tensor]:
    """Yield every tensor in nested dicts and lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict | list | tuple):
            yield from _tensors_in(value.values() if isinstance(value, dict) else value)

"""The memory that a step of a run takes on one device."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fidgpt import cost
from fidgpt.optim.groups import train_only
from fidgpt.parallel import MeshSizes
from fidgpt.train.estimates.recipe import Recipe, measured_or_none
from fidgpt.train.estimates.stages import StageFacts


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
      others: other models that the step computes with.
      is_split: whether a step has several micro-batches, so that gradients are kept between them.
    """

    weights: int
    copy: int
    gradients: int
    full_gradients: int
    optimizer: int | None
    average: int | None
    activations: cost.ActivationBytes | None
    num_sequences: int
    is_split: bool
    others: int = 0

    def sharded(self, num_shards: int, *, part: float = 1.0) -> "Footprint":
        """Return the footprint of a model sharded over devices, without what they gather.

        Args:
          num_shards: devices among which what each would hold is sharded.
          part: fraction of the weights that they hold together, of a model divided along `tensor`.
        """
        if num_shards == 1 and part == 1:
            return self

        def share(count: int | None) -> int | None:
            return None if count is None else int(count * part) // num_shards

        is_whole = num_shards == 1  # a sharded model needs no copy
        return replace(
            self,
            weights=share(self.weights),
            copy=share(self.copy) if is_whole else 0,
            gradients=share(self.gradients if is_whole else self.full_gradients),
            full_gradients=share(self.full_gradients),
            optimizer=share(self.optimizer),
            average=share(self.average),
        )

    def of_stages(self, stages: StageFacts, mesh: MeshSizes, *, part: float) -> "Footprint":
        """Return the footprint of a process of a pipeline.

        Args:
          stages: of the process.
          mesh: over which each stage is sharded.
          part: fraction of the weights of its stages that it holds, of those before sharding.
        """
        activations = self.activations
        if activations is not None:
            activations = activations._replace(kept=int(activations.kept * stages.activations))
        return replace(
            self.sharded(mesh.num_shards, part=part * stages.weights), activations=activations
        )

    @property
    def saved(self) -> int:
        """Bytes of a checkpoint: the weights, and what is known of their optimizer and average."""
        return self.weights + (self.optimizer or 0) + (self.average or 0)

    @property
    def peak(self) -> int:
        """The most at any time, without temporaries of backward passes and optimizers."""
        lasting = self.weights + self.copy + (self.optimizer or 0) + (self.average or 0)
        lasting += self.others
        waiting = self.full_gradients if self.is_split else 0
        # The last micro-batch has gradients in both formats, if there is a replica.
        both = waiting + (self.gradients if self.copy else 0)
        forward = waiting + sum(self.activations or ())
        return lasting + max(forward, both, self.gradients, self.full_gradients)


_MOST_TOKENS = 1 << 26  # of a pass that is measured, whose parts are counted one by one


def footprint(
    recipe: Recipe,
    *,
    num_sequences: int,
    device: torch.device,
    seq_len: int | None = None,
    mesh: MeshSizes | None = None,
) -> Footprint:
    """Take a step with a copy of the model, and add up what it would need.

    Args:
      recipe: of the run.
      num_sequences: sequences of a step on this device.
      device: where the model would train.
      seq_len: tokens of each that this device computes; None for all.
      mesh: by whose axes with parts of weights activations are divided, and weights are not; None
        for none.
    """
    model, precision, seq_len = recipe.model, recipe.precision, seq_len or recipe.seq_len
    at_once = min(recipe.micro_batch_size or num_sequences, num_sequences)
    measured = min(at_once, max(1, _MOST_TOKENS // seq_len))  # more take as much for each sequence
    step = copy.copy(recipe.step)
    twin, *others = cost.rehearsed(
        [model, *step.others()],
        num_tokens=measured * step.sequences_per_row * seq_len,
        device=device,
    )
    others = [precision.replica(other) for other in others]
    step.rehearse(others)
    train_only(twin, recipe.trainable)
    replica = precision.replica(twin)
    computing = replica
    if mesh is not None and mesh.dividing_axes:
        computing = cost.without_memory(replica)
        recipe.parallel.plan(computing, mesh)
    loss = copy.copy(recipe.loss)
    loss.chunk_size = loss.rows_on(device)  # and not as many as on the meta device
    activations = measured_or_none(
        lambda: cost.activation_bytes(
            computing,
            step.objective(computing, loss),
            num_sequences=measured,
            seq_len=seq_len,
            device=device,
            per_row=step.sequences_per_row,
        )
    )
    if activations is not None and measured < at_once:
        scaled = (count * at_once // measured for count in activations)
        activations = cost.ActivationBytes(*scaled)
    for parameter in replica.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    gradients = cost.bytes_of(_gradients(replica))
    precision.pull_gradients(twin, replica)
    own = [*twin.parameters(), *twin.buffers()]
    weights = cost.bytes_of(own)

    def optimizer_state() -> int:
        stepping = recipe.optimizer(recipe.groups(twin))
        stepping.step()
        return cost.bytes_of(cost.tensors_in([*stepping.state.values()]))

    def average_state() -> int:
        begun = copy.deepcopy(recipe.average)
        if begun is None:
            return 0
        begun.begin(twin)
        return cost.bytes_of(cost.tensors_in([begun.state_dict()]))

    return Footprint(
        weights=weights,
        copy=cost.bytes_of([*own, *replica.parameters(), *replica.buffers()]) - weights,
        gradients=gradients,
        full_gradients=cost.bytes_of(_gradients(twin)),
        optimizer=measured_or_none(optimizer_state),
        average=measured_or_none(average_state),
        activations=activations,
        num_sequences=at_once,
        is_split=at_once < num_sequences,
        others=cost.bytes_of(one for other in others for one in other.parameters()),
    )


def _gradients(model: nn.Module) -> Iterator[Tensor]:
    return (parameter.grad for parameter in model.parameters() if parameter.grad is not None)

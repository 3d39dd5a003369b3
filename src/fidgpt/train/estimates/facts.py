"""What is known of a run before its first step: size, cost, needs, and whether it can resume."""

import contextlib
import copy
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fidgpt import cost
from fidgpt.data import StreamWrapper, TrainingStream
from fidgpt.model.transformer import LanguageModel
from fidgpt.optim.groups import Grouping, train_only
from fidgpt.parallel import DataParallel, MeshSizes
from fidgpt.schedule import Schedule
from fidgpt.train.averaging import Average
from fidgpt.train.checkpoints import Checkpoints, check_fit, manifest
from fidgpt.train.device import Machine, machine_at_hand
from fidgpt.train.divergence import Divergence
from fidgpt.train.estimates.stages import PipelineFacts, StageFacts, pipeline_facts
from fidgpt.train.evaluation import Evaluator
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.optimizer_groups import decay_at_any_width, peak_rate
from fidgpt.train.precision import Precision
from fidgpt.train.run_directory import RunDirectory
from fidgpt.train.state import check_progress
from fidgpt.train.train_step import TrainStep

__all__ = ["Facts"]

# Raised by components that read values of tensors on the meta device.
NEEDS_NUMBERS = (RuntimeError, TypeError, ValueError)
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
Trainable = Callable[[str, nn.Parameter], bool]
T = TypeVar("T")


def without_layer(path: str) -> str:
    """Return the path of a module or parameter with `*` for the number of its layer."""
    return _LAYER.sub("*", path, count=1)


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


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """A group of parameters.

    Attributes:
      name: of the group; its index if it has none.
      learning_rate: at the peak of the schedule; None if the optimizer has none.
      weight_decay: None if the optimizer has none.
      settings: every setting that is a number.
      num_parameters: numbers in all of its tensors.
      holds: the parameters' names, shortened as by `in_short`.
    """

    name: str
    learning_rate: float | None
    weight_decay: float | None
    settings: Mapping[str, float]
    num_parameters: int
    holds: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What will run.

    Attributes:
      parameters: of the model, by how they are used.
      trained_parameters: those that are trained.
      shared: names of parameters that several modules hold, with their other names.
      flops_per_token: floating-point operations of a training step, per token.
      tokens: of the whole run.
      num_steps: optimizer steps of the whole run.
      tokens_per_step: tokens of a step with a full batch, over all processes.
      device: of this process.
      world_size: processes.
      precision: number format of the computation, such as `bfloat16`.
      peak_flops: peak performance of all devices in that format, per second.
      memory: what each device needs.
      memory_there: bytes that each device has; None if unknown.
      weights: what initializes the model; None if its weights are random.
      undivided: modules with matrices that every process of an axis computes whole.
      dropout_matches_one_process: whether dropout drops the elements that one process would drop.
      evaluators: names of the evaluators.
      copies: bytes of checkpoints that a machine keeps in memory.
      pipeline: its stages and its bubble; None if there is no pipeline.
    """

    parameters: cost.ParameterCount
    trained_parameters: int
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
    undivided: tuple[str, ...] = ()
    dropout_matches_one_process: bool = True
    evaluators: tuple[str, ...] = ()
    copies: int = 0
    pipeline: PipelineFacts | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The facts of a run, and where its cost is.

    Attributes:
      facts: what every run shows.
      places: the cost of a token's forward pass, by place.
      runs_without_memory: whether the model could be run on the meta device to measure it.
      cache: bytes of the KV cache of one token and of a training sequence, and the tokens of that;
        None if the model needs the values of its tensors.
      groups: of parameters, as the optimizer treats them.
    """

    facts: Facts
    places: Sequence[cost.PlaceCost]
    runs_without_memory: bool
    cache: tuple[int, int, int] | None
    groups: Sequence[GroupFacts]


def measured_flops(model: LanguageModel, *, seq_len: int) -> dict[str, int] | None:
    """Return the FLOPs of modules that do not declare them; None if the model needs values."""
    classes = {type(module).__module__ for module in model.modules()}
    if all(name.startswith(("fidgpt.model.", "torch.nn.")) for name in classes):
        return {}  # ours declare theirs, and torch takes a second to load its counter's modules
    return _known(lambda: cost.undeclared_flops(cost.without_memory(model), seq_len=seq_len))


def cache_sizes(
    model: LanguageModel, precision: Precision, *, seq_len: int
) -> tuple[int, int, int] | None:
    """Return the `cache` of a `Summary`."""
    replica = precision.replica(cost.without_memory(model)).eval()
    sizes = _known(lambda: [cost.cache_bytes(replica, context=count) for count in (1, seq_len)])
    return None if sizes is None else (sizes[0], sizes[1], seq_len)


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


def trainable_copy(model: nn.Module, trainable: Trainable | None) -> nn.Module:
    """Return a copy of the model on the meta device with `requires_grad` as the run sets it."""
    twin = cost.without_memory(model)
    train_only(twin, trainable)
    return twin


@runtime_checkable
class Recipe(Protocol):
    """What a run consists of; see the attributes of `Trainer`.

    The model may be on the meta device, and is left unchanged by what measures or tries it.
    """

    model: LanguageModel
    stream: TrainingStream
    vocab_size: int
    seq_len: int
    batch_size: int
    num_steps: int
    step: TrainStep
    micro_batch_size: int | None
    batch_growth: StreamWrapper | None
    seq_len_growth: StreamWrapper | None
    optimizer: Callable[..., Optimizer]
    schedule: Schedule
    schedules: Mapping[str, Schedule] | None
    groups: Grouping
    trainable: Trainable | None
    loss: CrossEntropy
    precision: Precision
    parallel: DataParallel
    checkpoints: Checkpoints
    evaluators: Mapping[str, Evaluator]
    weights: Callable[[LanguageModel], None] | None
    divergence: Divergence | None
    average: Average | None


def facts_of(
    recipe: Recipe, machine: Machine | None = None, *, measured: Mapping[str, int] | None = None
) -> Facts:
    """Return what will run; the model may be on the meta device.

    Args:
      recipe: of the run.
      machine: what it would run on; None for the one at hand.
      measured: what `measured_flops` returned, if it is known.
    """
    machine = machine or machine_at_hand(recipe.parallel, recipe.precision.dtype)
    model, seq_len = recipe.model, recipe.seq_len
    if measured is None:
        measured = measured_flops(model, seq_len=seq_len) or {}
    forward = cost.flops_per_token(model, seq_len=seq_len) + sum(measured.values())
    tokens_per_step = recipe.batch_size * seq_len
    is_changed = recipe.trainable is not None
    trained = trainable_copy(model, recipe.trainable) if is_changed else model
    mesh = recipe.parallel.layout(machine.world_size)
    num_sequences = -(-recipe.batch_size // mesh.data_size)
    memory = footprint(
        recipe,
        num_sequences=num_sequences,
        seq_len=-(-seq_len // mesh.row_size),
        device=machine.device,
        mesh=mesh,
    )
    part = recipe.parallel.part_of_weights(model, mesh)
    number = -(-num_sequences // memory.num_sequences)
    pipeline = pipeline_facts(recipe.parallel, model, mesh, num_micro_batches=number)
    if pipeline is None:
        memory = memory.sharded(mesh.num_shards, part=part)
    else:
        most = max(one.weights for one in pipeline.processes)
        each = [memory.of_stages(one, mesh, part=part / most) for one in pipeline.processes]
        memory = max(each, key=lambda one: one.peak)
        pipeline = pipeline.with_memory([one.peak for one in each])
    return Facts(
        parameters=cost.count_parameters(model),
        trained_parameters=sum(one.numel() for one in trained.parameters() if one.requires_grad),
        shared=cost.shared_parameters(model),
        flops_per_token=cost.TRAINING_PASSES * forward,
        tokens=round(recipe.stream.full_batches(recipe.num_steps) * tokens_per_step),
        num_steps=recipe.num_steps,
        tokens_per_step=tokens_per_step,
        device=machine.device,
        world_size=machine.world_size,
        precision=str(recipe.precision.dtype).removeprefix("torch."),
        peak_flops=machine.peak_flops,
        memory=memory,
        memory_there=machine.memory,
        weights=None if recipe.weights is None else call_text(recipe.weights),
        evaluators=tuple(recipe.evaluators),
        copies=_copies(recipe.checkpoints, memory, mesh),
        undivided=tuple(dict.fromkeys(map(without_layer, recipe.parallel.undivided(model)))),
        dropout_matches_one_process=recipe.parallel.dropout_matches_one_process(model, mesh),
        pipeline=pipeline,
    )


def _copies(checkpoints: Checkpoints, memory: Footprint, mesh: MeshSizes) -> int:
    """Return the bytes of checkpoints that a machine of a run keeps in memory."""
    if checkpoints.memory is None:
        return 0
    local = int(os.environ.get("LOCAL_WORLD_SIZE", mesh.size))
    return checkpoints.memory.needed(memory.saved, num_parts=mesh.num_parts, num_local=local)


def summary_of(recipe: Recipe, machine: Machine) -> Summary:
    """Return all that is known of a run on a machine; the model may be on the meta device."""
    measured = measured_flops(recipe.model, seq_len=recipe.seq_len)
    known = measured or {}
    return Summary(
        facts=facts_of(recipe, machine, measured=known),
        places=cost.cost_by_place(recipe.model, seq_len=recipe.seq_len, measured=known),
        runs_without_memory=measured is not None,
        cache=cache_sizes(recipe.model, recipe.precision, seq_len=recipe.seq_len),
        groups=parameter_groups(recipe),
    )


def check_resumable(recipe: Recipe, run: RunDirectory, *, step: int | None = None) -> None:
    """Check that a run could be resumed, as far as names, shapes and counts can show.

    Neither the text nor the tensors are read, so that another text or a damaged file is not
    found. Nothing is written, and the model may stay on the meta device.

    Args:
      recipe: of the run, with which it would go on.
      run: its directory.
      step: of the checkpoint; None for the newest.

    Raises:
      CheckpointError: there is no such checkpoint, or it does not fit the model or the
        optimizer.
      RunError: the run read its text in another way than by this config, is past its end, or
        its directory cannot be written.
    """
    run.require_writable()
    mirror = recipe.checkpoints.mirror
    if not manifest.find(run.path) and (step is None or mirror is not None):
        return  # it starts again, or from what the mirror has
    model, optimizer = trainable_copy(recipe.model, recipe.trainable), None
    with contextlib.suppress(*NEEDS_NUMBERS):
        optimizer = recipe.optimizer(recipe.groups(model))
    found, saved = check_fit(run.path, step, model=model, optimizer=optimizer)
    shift = 0 if recipe.divergence is None else saved.get("shift")
    with manifest.naming_damage(manifest.folder_of(run.path) / manifest.name_of(found)):
        check_progress(
            saved, recipe.stream, step=found, shift=shift, num_steps=recipe.num_steps, path=run.path
        )


def parameter_groups(recipe: Recipe) -> list[GroupFacts]:
    """Return the groups of a run."""
    model = trainable_copy(recipe.model, recipe.trainable)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    layers = _layers_by_pattern(names.values())
    found = recipe.groups(model)
    with contextlib.suppress(*NEEDS_NUMBERS):  # without the optimizer's defaults then
        optimizer = recipe.optimizer(found)
        decay_at_any_width(optimizer)
        found = optimizer.param_groups
    return [
        GroupFacts(
            name=str(group.get("name", number)),
            learning_rate=peak_rate(group) if "lr" in group else None,
            weight_decay=group.get("weight_decay"),
            settings={
                name: value
                for name, value in group.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            },
            num_parameters=sum(parameter.numel() for parameter in group["params"]),
            holds=in_short([names[id(p)] for p in group["params"]], layers),
        )
        for number, group in enumerate(found)
    ]


def in_short(names: Iterable[str], layers: Mapping[str, Collection[int]]) -> str:
    """Shorten names to the form `blocks.*.attention.{query,key}.weight, norm.weight`.

    Args:
      names: of parameters.
      layers: indices of all layers that have a parameter, by its name with `*` for the index.
    """
    siblings: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for pattern, numbers in _layers_by_pattern(names).items():
        index = "*" if numbers >= {*layers[pattern]} else _ranges(sorted(numbers))
        module, _, leaf = pattern.replace("*", index, 1).rpartition(".")
        parent, _, own = module.rpartition(".")
        siblings[parent, leaf].append(own)
    texts = []
    for (parent, leaf), own in siblings.items():
        together = own[0] if len(own) == 1 else f"{{{','.join(own)}}}"
        texts.append(".".join(part for part in (parent, together, leaf) if part))
    return ", ".join(texts)


def _layers_by_pattern(names: Iterable[str]) -> dict[str, set[int]]:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for name in names:
        number = _LAYER.search(name)
        found[without_layer(name)] |= {int(number[0])} if number else set()
    return found


def _ranges(numbers: list[int]) -> str:
    """Write `[0, 1, 2, 5]` as `{0..2,5}`."""
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
    return texts[0] if len(numbers) == 1 else f"{{{','.join(texts)}}}"


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
    activations = _known(
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
        return cost.bytes_of(_tensors_in([*stepping.state.values()]))

    def average_state() -> int:
        begun = copy.deepcopy(recipe.average)
        if begun is None:
            return 0
        begun.begin(twin)
        return cost.bytes_of(_tensors_in([begun.state_dict()]))

    return Footprint(
        weights=weights,
        copy=cost.bytes_of([*own, *replica.parameters(), *replica.buffers()]) - weights,
        gradients=gradients,
        full_gradients=cost.bytes_of(_gradients(twin)),
        optimizer=_known(optimizer_state),
        average=_known(average_state),
        activations=activations,
        num_sequences=at_once,
        is_split=at_once < num_sequences,
        others=cost.bytes_of(one for other in others for one in other.parameters()),
    )


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

"""What is known of a run before its first step: size, cost, needs, and whether it can resume."""

import contextlib
import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from torch import nn

from fidgpt import cost
from fidgpt.data import StreamWrapper
from fidgpt.optim.groups import Grouping, train_only
from fidgpt.parallel import MeshSizes
from fidgpt.plan import Cluster, Memory, Plan, Planner
from fidgpt.recording import Sent
from fidgpt.schedule import Schedule
from fidgpt.train.checkpoints import Checkpoints, check_fit, manifest
from fidgpt.train.device import cluster_at_hand
from fidgpt.train.divergence import Divergence
from fidgpt.train.evaluation import Evaluator
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.optimizer_groups import decay_at_any_width, peak_rate
from fidgpt.train.run_directory import RunDirectory
from fidgpt.train.state import check_progress
from fidgpt.train.train_step import StepSettings, TrainStep

__all__ = ["Facts"]

Trainable = Callable[[str, nn.Parameter], bool]


def trainable_copy(model: nn.Module, trainable: Trainable | None) -> nn.Module:
    """Return a copy of the model on the meta device with `requires_grad` as the run sets it."""
    twin = cost.without_memory(model)
    train_only(twin, trainable)
    return twin


@runtime_checkable
class Recipe(StepSettings, Protocol):
    """What a run consists of; see the attributes of `Trainer`.

    The model may be on the meta device, and is left unchanged by what measures or tries it.
    """

    vocab_size: int
    step: TrainStep
    batch_growth: StreamWrapper | None
    seq_len_growth: StreamWrapper | None
    schedule: Schedule
    schedules: Mapping[str, Schedule] | None
    groups: Grouping
    loss: CrossEntropy
    checkpoints: Checkpoints
    evaluators: Mapping[str, Evaluator]
    divergence: Divergence | None


_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def without_layer(path: str) -> str:
    """Return the path of a module or parameter with `*` for the number of its layer."""
    return _LAYER.sub("*", path, count=1)


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


def parameter_groups(recipe: Recipe) -> list[GroupFacts]:
    """Return the groups of a run."""
    model = trainable_copy(recipe.model, recipe.trainable)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    layers = _layers_by_pattern(names.values())
    groups = recipe.groups(model)
    with contextlib.suppress(*cost.NEEDS_NUMBERS):  # without the optimizer's defaults then
        optimizer = recipe.optimizer(groups)
        decay_at_any_width(optimizer)
        groups = optimizer.param_groups
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
        for number, group in enumerate(groups)
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
        parent, _, name = module.rpartition(".")
        siblings[parent, leaf].append(name)
    texts = []
    for (parent, leaf), children in siblings.items():
        together = children[0] if len(children) == 1 else f"{{{','.join(children)}}}"
        texts.append(".".join(part for part in (parent, together, leaf) if part))
    return ", ".join(texts)


def _layers_by_pattern(names: Iterable[str]) -> dict[str, set[int]]:
    layers: defaultdict[str, set[int]] = defaultdict(set)
    for name in names:
        number = _LAYER.search(name)
        layers[without_layer(name)] |= {int(number[0])} if number else set()
    return layers


def _ranges(numbers: list[int]) -> str:
    """Write `[0, 1, 2, 5]` as `{0..2,5}`."""
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
    return texts[0] if len(numbers) == 1 else f"{{{','.join(texts)}}}"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What will run.

    Attributes:
      parameters: of the model, by how they are used.
      trained_parameters: those that are trained.
      shared: names of parameters that several modules hold, with their other names.
      forward: operations of the forward pass, per token.
      tokens: of the whole run.
      num_steps: optimizer steps of the whole run.
      tokens_per_step: tokens of a step with a full batch, over all processes.
      plan: what it takes.
      precision: number format of the computation, such as `bfloat16`.
      weights: what initializes the model; None if its weights are random.
      undivided: modules with matrices that every process of an axis computes whole.
      dropout_matches_one_process: whether dropout drops the elements that one process would drop.
      evaluators: names of the evaluators.
      copies: bytes of checkpoints that a machine keeps in memory.
      collectives: of a step, for each process of a pipeline; empty if they are unknown.
    """

    parameters: cost.ParameterCount
    trained_parameters: int
    shared: Mapping[str, list[str]]
    forward: cost.ForwardPass
    tokens: int
    num_steps: int
    tokens_per_step: int
    plan: Plan
    precision: str
    weights: str | None = None
    undivided: tuple[str, ...] = ()
    dropout_matches_one_process: bool = True
    evaluators: tuple[str, ...] = ()
    copies: int = 0
    collectives: Sequence[Counter[Sent]] = ()

    @property
    def cluster(self) -> Cluster:
        """The devices."""
        return self.plan.cluster

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations of a training step, per token."""
        return cost.TRAINING_PASSES * self.forward.total

    @property
    def memory(self) -> Memory:
        """What the device that needs most needs."""
        return self.plan.memory[self.plan.worst]

    @property
    def peak_flops(self) -> float:
        """The peak performance of all devices in the number format, per second."""
        return self.cluster.size * self.cluster.device.peak(self.precision)


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


def facts_of(recipe: Recipe, cluster: Cluster | None = None) -> Facts:
    """Return what will run; the model may be on the meta device.

    Args:
      recipe: of the run.
      cluster: what it would run on; None for the devices at hand.
    """
    cluster = cluster or cluster_at_hand(recipe.parallel, recipe.precision.dtype)
    model, mesh = recipe.model, recipe.parallel.layout(cluster.size)
    planner = Planner(recipe, cluster)
    setting = planner.setting(mesh)
    collectives = ()
    try:
        plan, collectives = planner.plan(setting), planner.collectives(setting)
    except cost.NEEDS_NUMBERS:
        plan = planner.plan_of_weights(setting)
    tokens_per_step = recipe.batch_size * recipe.step.sequences_per_row * recipe.seq_len
    is_changed = recipe.trainable is not None
    trained = trainable_copy(model, recipe.trainable) if is_changed else model
    return Facts(
        parameters=cost.count_parameters(model),
        trained_parameters=sum(p.numel() for p in trained.parameters() if p.requires_grad),
        shared=cost.shared_parameters(model),
        forward=planner.training.forward,
        tokens=round(recipe.stream.full_batches(recipe.num_steps) * tokens_per_step),
        num_steps=recipe.num_steps,
        tokens_per_step=tokens_per_step,
        plan=plan,
        precision=planner.training.dtype,
        weights=None if recipe.weights is None else call_text(recipe.weights),
        evaluators=tuple(recipe.evaluators),
        copies=_copies(recipe.checkpoints, plan, mesh),
        collectives=collectives,
        undivided=tuple(dict.fromkeys(map(without_layer, recipe.parallel.undivided(model)))),
        dropout_matches_one_process=recipe.parallel.dropout_matches_one_process(model, mesh),
    )


def _copies(checkpoints: Checkpoints, plan: Plan, mesh: MeshSizes) -> int:
    """Return the bytes of checkpoints that a machine of a run keeps in memory."""
    if checkpoints.memory is None:
        return 0
    local = int(os.environ.get("LOCAL_WORLD_SIZE", mesh.size))
    saved = int(plan.memory[plan.worst].saved)
    return checkpoints.memory.needed(saved, num_parts=mesh.num_parts, num_local=local)


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
    with contextlib.suppress(*cost.NEEDS_NUMBERS):
        optimizer = recipe.optimizer(recipe.groups(model))
    saved_step, saved = check_fit(run.path, step, model=model, optimizer=optimizer)
    shift = 0 if recipe.divergence is None else saved.get("shift")
    with manifest.naming_damage(manifest.folder_of(run.path) / manifest.name_of(saved_step)):
        check_progress(
            saved,
            recipe.stream,
            step=saved_step,
            shift=shift,
            num_steps=recipe.num_steps,
            path=run.path,
        )

"""What is known of a run before its first step: size, cost, needs, and whether it can resume."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fidgpt import cost
from fidgpt.model.transformer import LanguageModel
from fidgpt.parallel import MeshSizes
from fidgpt.plan import Cluster, Memory, Plan, Planner
from fidgpt.recording import Sent
from fidgpt.train.checkpoints import Checkpoints, check_fit, manifest
from fidgpt.train.device import cluster_at_hand
from fidgpt.train.estimates.group_facts import GroupFacts, parameter_groups, without_layer
from fidgpt.train.estimates.recipe import Recipe, trainable_copy
from fidgpt.train.precision import Precision
from fidgpt.train.run_directory import RunDirectory
from fidgpt.train.state import check_progress

__all__ = ["Facts"]


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


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The facts of a run, and where its cost is.

    Attributes:
      facts: what every run shows.
      places: the cost of a token's forward pass, by place.
      cache: bytes of the KV cache of one token and of a training sequence, and the tokens of that;
        None if the model needs the values of its tensors.
      groups: of parameters, as the optimizer treats them.
    """

    facts: Facts
    places: Sequence[cost.PlaceCost]
    cache: tuple[int, int, int] | None
    groups: Sequence[GroupFacts]


def cache_sizes(
    model: LanguageModel, precision: Precision, *, seq_len: int
) -> tuple[int, int, int] | None:
    """Return the `cache` of a `Summary`."""
    replica = precision.replica(cost.without_memory(model)).eval()
    try:
        token, text = (cost.cache_bytes(replica, context=count) for count in (1, seq_len))
    except cost.NEEDS_NUMBERS:
        return None
    return token, text, seq_len


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


def summary_of(recipe: Recipe, cluster: Cluster) -> Summary:
    """Return all that is known of a run on some devices; the model may be on the meta device."""
    facts = facts_of(recipe, cluster)
    return Summary(
        facts=facts,
        places=cost.cost_by_place(recipe.model, facts.forward),
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

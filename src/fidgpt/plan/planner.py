"""Plans of a run: on the mesh that it has, or on every mesh that divides it, the fastest first."""

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fidgpt import cost
from fidgpt.model.quantized import require_copies
from fidgpt.model.transformer import LanguageModel
from fidgpt.model.wrappers import Compiled, Recompute, Recomputed, keep_all, keep_products
from fidgpt.optim.groups import train_only
from fidgpt.parallel import (
    AxisPart,
    DataParallel,
    ExpertParallel,
    GatheredContext,
    Mesh,
    MeshSizes,
    SequenceParallel,
)
from fidgpt.parallel.experts import EXPERT
from fidgpt.parallel.pipeline import PIPELINE, PipelineParallel, require_no_skips
from fidgpt.parallel.pipeline_schedule import TorchSchedule
from fidgpt.plan.estimate import Plan, estimated, peak_of_weights
from fidgpt.plan.hardware import Cluster
from fidgpt.plan.stages import Setting, Training, step_collectives
from fidgpt.plan.trace import RecordedProcesses, Trace, divided_again, repeated, trace, untraced
from fidgpt.processes import Processes
from fidgpt.recording import Sent

__all__ = ["NoPlan", "Planner", "Ranking", "Recipe", "Variant", "recompute_words"]

RECOMPUTE = {"none": keep_all, "selective": keep_products, "full": None}
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_MOST_TENSOR, _MOST_PIPELINE = 16, 64
_MISFITS = 12  # that are executed if none fits, though their weights need more memory than there is
_SAMPLED = 512  # steps that stand for all where batches or sequences grow
_EXACT = 1 << 18  # tokens of a micro-batch that is executed, and not computed from smaller ones


class NoPlan(ValueError):
    """A run cannot be planned; the message says what would be the nearest thing that works."""


class Recipe(Protocol):
    """What a run consists of; see the attributes of `Trainer`."""

    model: LanguageModel
    seq_len: int
    batch_size: int
    num_steps: int
    stream: Any
    micro_batch_size: int | None
    optimizer: Callable[..., torch.optim.Optimizer]
    groups: Any
    trainable: Callable[[str, nn.Parameter], bool] | None
    loss: Any
    precision: Any
    parallel: DataParallel
    average: Any
    step: Any


@dataclass(frozen=True)
class Variant:
    """A plan beside another one, and what changes between them."""

    change: str
    plan: Plan


@dataclass(frozen=True)
class Ranking:
    """The plans of a search.

    Attributes:
      plans: those that fit, the fastest at the front; the others follow by memory. Left out is what
        needs more memory for weights alone; if nothing fits, but for the least of it.
      num_meshes: that divide model and batch.
      num_settings: meshes with a micro-batch and a choice of recomputation.
    """

    plans: Sequence[Plan]
    num_meshes: int
    num_settings: int


class Planner:
    """Plans one run; what depends on the shapes of a process's share alone is measured once.

    Args:
      recipe: of the run, its model on the meta device; it is left unchanged.
      cluster: on which it would run.
    """

    def __init__(self, recipe: Recipe, cluster: Cluster) -> None:
        self.recipe = recipe
        self.cluster = cluster
        self._traces: dict[object, Trace] = {}
        self._parts = dict(recipe.parallel.parts)
        self._average = copy.deepcopy(recipe.average)  # before the run's own holds weights
        model = recipe.model
        if recipe.trainable is not None:  # before kinds are found, which differ in what is trained
            train_only(model := cost.without_memory(model), recipe.trainable)
        with cost.one_block_of_each_kind(model) as kinds:
            self._small = cost.without_memory(model)
            self._kinds = {name: [*layers] for name, layers in kinds.items()}
        self._distinct = {
            name: len({id(model.get_submodule(f"blocks.{n}")) for n in layers}) / len(layers)
            for name, layers in self._kinds.items()
        }

    @cached_property
    def training(self) -> Training:
        """What a step computes on any mesh, once asked for: its state loads torch._dynamo."""
        recipe, pipeline = self.recipe, self._parts.get(PIPELINE.name)
        dtype = recipe.precision.dtype
        schedule, stages = TorchSchedule(), None
        num_steps, num_batches = self._lengths.get(1.0, (0.0, 0.0))
        if isinstance(pipeline, PipelineParallel):
            schedule, stages = pipeline.schedule, pipeline.stages
        return Training(
            dtype=str(dtype).removeprefix("torch."),
            itemsize=dtype.itemsize,
            state=self._state(),
            forward=cost.forward_pass(recipe.model, seq_len=recipe.seq_len),
            tokens_per_step=recipe.batch_size * recipe.step.sequences_per_row * recipe.seq_len,
            sequences_per_row=recipe.step.sequences_per_row,
            other_bytes=cost.bytes_of(
                parameter
                for other in recipe.step.others()
                for parameter in recipe.precision.replica(cost.without_memory(other)).parameters()
            ),
            num_steps=num_steps,
            num_batches=num_batches,
            schedule=schedule,
            stages=stages,
            counts_first=recipe.model.counts_computed,
        )

    @cached_property
    def _lengths(self) -> dict[float, tuple[float, float]]:
        """Steps, and the full batches in them, by the share of the full length of sequences."""
        number, found = self.recipe.num_steps, dict[float, tuple[float, float]]()
        count = min(number, _SAMPLED)
        for place in range(count):
            size, length = self.recipe.stream.growth((2 * place + 1) * number // (2 * count))
            steps, batches = found.get(length, (0.0, 0.0))
            found[length] = steps + number / count, batches + size * number / count
        return found

    @cached_property
    def _shorter(self) -> Sequence[tuple[float, "Planner"]]:
        """Planners of the steps with shorter sequences, by the share of the full length."""
        twins = [(length, copy.copy(self)) for length in self._lengths if length < 1]
        for length, twin in twins:
            num_steps, num_batches = self._lengths[length]
            twin.recipe = copy.copy(self.recipe)
            twin.recipe.seq_len = round(self.recipe.seq_len * length)
            training = replace(self.training, num_steps=num_steps, num_batches=num_batches)
            vars(twin).update(training=training, _traces={}, _shorter=[])
        return twins

    def _block(self, name: str) -> nn.Module:
        return self._small.get_submodule(f"blocks.{name}")

    def _state(self) -> float:
        """Return the bytes of the optimizer and of averages for each trained element.

        Both are made for one block of each kind, and counted for every layer of that kind. Where
        they read values before they have a state, 8 bytes of AdamW's moments are assumed, and 4 of
        an average.
        """
        (twin,) = cost.rehearsed([self._small], num_tokens=1, device=self._device)
        weights: dict[Tensor, int] = {p: 1 for p in twin.parameters()}
        for name, layers in self._kinds.items():
            for parameter in twin.get_submodule(f"blocks.{name}").parameters():
                weights[parameter] = len(layers)
        number = sum(p.numel() for p in weights if p.requires_grad)
        whole = sum(p.numel() * count for p, count in weights.items() if p.requires_grad)
        for parameter in weights:
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        sizes = {p: 8 * p.numel() for p in weights if p.requires_grad}
        with suppress(*cost.NEEDS_NUMBERS):
            optimizer = self.recipe.optimizer(self.recipe.groups(twin))
            with suppress(*cost.NEEDS_NUMBERS):
                optimizer.step()
                sizes = {}
            sizes |= {p: cost.bytes_of(cost.tensors_in([s])) for p, s in optimizer.state.items()}
        each = sum(size * weights.get(p, 1) for p, size in sizes.items()) / max(1, whole)
        if self._average is not None:
            try:
                self._average.begin(twin)
                size = cost.bytes_of(cost.tensors_in([self._average.state_dict()]))
                each += size / max(1, number)
            except cost.NEEDS_NUMBERS:
                each += 4
        return each

    @property
    def _device(self) -> torch.device:
        return torch.device(self.cluster.device.kind)

    @property
    def recompute(self) -> str:
        """What the config recomputes."""
        keeps = [
            block.recompute_keeps if isinstance(block, Recomputed) else keep_all
            for block in map(self._block, self._kinds)
        ]
        names = [name for name, keep in RECOMPUTE.items() if keeps and keep is keeps[0]]
        return names[0] if names and len({*map(id, keeps)}) == 1 else ""

    def has_part(self, axis: str) -> bool:
        """Whether the config itself has a part that divides the model along an axis."""
        return axis in self._parts

    def setting(self, mesh: MeshSizes) -> Setting:
        """Return the setting of the config on a mesh."""
        rows = -(-self.recipe.batch_size // mesh.data_size)
        size = min(self.recipe.micro_batch_size or rows, rows)
        return Setting(
            mesh=mesh,
            micro_batch=size,
            num_micro_batches=-(-rows // size),
            reshards=self.recipe.parallel.reshards,
        )

    def plan(self, setting: Setting) -> Plan:
        """Return what a run takes.

        Raises:
          ValueError: the mesh cannot divide the model.
        """
        plan = estimated(self._trace(setting), self.training, setting, self.cluster)
        days, is_limited = plan.days, self.recipe.micro_batch_size or setting.num_micro_batches > 1
        name = "num_micro_batches" if is_limited else "micro_batch"
        for length, twin in self._shorter:  # each sequence is split into several rows
            more = {name: round(getattr(setting, name) / length)}
            days += twin.plan(replace(setting, **more)).days
        return replace(plan, days=days)

    def collectives(self, setting: Setting) -> tuple[Counter[Sent], ...]:
        """Return what each process of a pipeline sends in a step; see `step_collectives`.

        Raises:
          ValueError: the mesh cannot divide the model.
        """
        return step_collectives(self._trace(setting), self.training, setting)

    def plan_of_weights(self, setting: Setting) -> Plan:
        """Return the same of a model that reads values, without activations and operations."""
        plan = estimated(self._weights(setting.mesh), self.training, setting, self.cluster)
        shorter = (twin.plan_of_weights(setting).days for _, twin in self._shorter)
        return replace(plan, days=plan.days + sum(shorter))

    def _weights(self, mesh: MeshSizes) -> Trace:
        """Return the weights of a process alone."""
        used = self._used(mesh)
        sizes = {a.name: mesh[a] for a in mesh.dividing_axes if a.name in used and a != PIPELINE}
        key = tuple(sizes.items())
        if key not in self._traces:
            model = cost.without_memory(self._small)
            for name, size in sizes.items():
                used[name](model, RecordedProcesses(size, is_planned=True, name=name))
            replica = self.recipe.precision.replica(model)
            self._traces[key] = self._with_distinct(
                untraced(replica, self._kinds, _borrowing(mesh))
            )
        return self._traces[key]

    def check(self, mesh: MeshSizes) -> None:
        """Raise ValueError if a mesh cannot divide the model or the batch."""
        require_copies(self._small, mesh.sizes)
        if self.recipe.batch_size < mesh.data_size:
            raise NoPlan(
                f"batch_size={self.recipe.batch_size} is too small for the {mesh.data_size} "
                f"processes of {mesh} that read different sequences: choose {mesh.data_size} or "
                "more, or let some of them share the weights or tokens of a sequence "
                "(tensor, context, pipeline)."
            )
        for name, part in self._used(mesh).items():
            if name != PIPELINE.name:
                part.check(self._small, mesh=mesh, seq_len=self.recipe.seq_len)
        size = mesh.sizes.get(PIPELINE.name, 1)
        most = len(self.training.forward.layers)
        if size > 1 and not self.recipe.step.fits_pipeline:
            kind = type(self.recipe.step).__name__
            raise ValueError(f"pipeline={size} cannot compute the objective of {kind}.")
        if size > 1:
            require_no_skips(self._small)
        if size > 1 and self.training.schedule.num_stages(size) > most + 1:
            raise ValueError(f"pipeline={size} makes more stages than {most} layers can fill.")

    def _used(self, mesh: MeshSizes) -> dict[str, AxisPart]:
        """Return what divides the model on a mesh: the config's own parts, or the usual ones."""
        usual: dict[str, AxisPart] = {
            "tensor": SequenceParallel(),
            "context": GatheredContext(),
            "expert": ExpertParallel(),
            "pipeline": PipelineParallel(),
        }
        parts = {**usual, **self._parts}
        return {n: parts[n] for n, size in mesh.sizes.items() if size > 1 and n in parts}

    def _with_distinct(self, trace: Trace) -> Trace:
        """Return a trace that knows which share of its layers has weights of their own."""
        parts = [replace(p, distinct=self._distinct.get(p.name, 1.0)) for p in trace.parts]
        return replace(trace, parts=tuple(parts))

    def _trace(self, setting: Setting) -> Trace:
        mesh = setting.mesh
        sizes = {name: mesh.sizes[name] for name in self._used(mesh) if name != PIPELINE.name}
        key = (tuple(sizes.items()), setting.micro_batch, setting.recompute)
        if key not in self._traces:
            self._traces[key] = self._with_distinct(self._new_trace(setting, sizes))
        return self._traces[key]

    def _new_trace(self, setting: Setting, sizes: Mapping[str, int]) -> Trace:
        """Return a trace by way of others where it follows from them, else execute the pass."""
        exact = not setting.recompute and setting.micro_batch * self.recipe.seq_len <= _EXACT
        if setting.micro_batch > 2 and not exact:
            one, two = (self._trace(replace(setting, micro_batch=number)) for number in (1, 2))
            return repeated(one, two, setting.micro_batch)
        if not (number := sizes.get(EXPERT.name, 1)) % 8:
            mesh, name = setting.mesh, EXPERT.name
            quarter, half = (
                self._trace(replace(setting, mesh=replace(mesh, **{name: number // part})))
                for part in (4, 2)
            )
            if (halved := divided_again(quarter, half)) is not None:
                return halved
        return self._execute(setting, sizes)

    def _execute(self, setting: Setting, sizes: Mapping[str, int]) -> Trace:
        recipe, step = self.recipe, copy.copy(self.recipe.step)
        tokens = setting.micro_batch * step.sequences_per_row * recipe.seq_len
        is_compiled = any(isinstance(module, Compiled) for module in self._small.modules())
        is_meta = sizes or setting.recompute or is_compiled
        model, *others = cost.rehearsed(
            [self._small, *step.others()],
            num_tokens=cost.TRAINING_PASSES * tokens,
            device=torch.device("meta") if is_meta else self._device,
        )
        step.rehearse([recipe.precision.replica(other) for other in others])
        if setting.recompute:
            for name in self._kinds:
                block = Recompute()(model.get_submodule(f"blocks.{name}"), layer=0)
                setattr(block, "recompute_keeps", RECOMPUTE[setting.recompute])  # noqa: B010
        used = self._used(setting.mesh)

        def divide(whole: nn.Module, processes: Callable[[str, int], Processes]) -> None:
            for name in sizes:
                used[name](whole, processes(name, sizes[name]))

        loss = copy.copy(recipe.loss)
        loss.chunk_size = loss.rows_on(self._device)  # and not as many as on the meta device
        return trace(
            model,
            lambda computing: step.objective(computing, loss),
            divide,
            replica=recipe.precision.replica,
            num_rows=setting.micro_batch,
            sequences_per_row=step.sequences_per_row,
            seq_len=recipe.seq_len,
            chunk_size=loss.chunk_size,
            kinds=self._kinds,
            borrowing=_borrowing(setting.mesh),
        )

    def search(self) -> Ranking:
        """Rank every mesh, micro-batch and choice of recomputation that divides.

        Raises:
          NoPlan: no mesh of so many devices divides the run.
        """
        memory, bounded = self.cluster.device.memory, list[tuple[float, Setting]]()
        for setting in self._settings():
            with suppress(ValueError):  # of a schedule with another number of micro-batches
                weights = self._weights(setting.mesh)
                least = peak_of_weights(weights, self.training, setting, self.cluster)
                bounded.append((least, setting))
        if not bounded:
            raise NoPlan(self._undivided())
        plans = self._possible(setting for least, setting in bounded if least <= memory)
        if not any(plan.fits for plan in plans):
            for least, setting in sorted(bounded, key=lambda pair: pair[0]):
                if least > memory:
                    peaks = sorted(plan.peak for plan in plans)[:_MISFITS]
                    if len(peaks) == _MISFITS and peaks[-1] < least:
                        break
                    with suppress(ValueError):
                        plans.append(self.plan(setting))
        return Ranking(
            sorted(plans, key=lambda p: (not p.fits, p.step if p.fits else p.peak)),
            num_meshes=len({setting.mesh for _, setting in bounded}),
            num_settings=len(bounded),
        )

    def _possible(self, settings: Iterable[Setting]) -> list[Plan]:
        """Return plans, but for those that need more memory than one that has too little.

        On a mesh, these are larger micro-batches and less recomputation; a step of one micro-batch
        alone adds up no gradients.
        """
        plans, misfits = list[Plan](), set[object]()
        for setting in settings:
            is_single, rank = setting.num_micro_batches == 1, [*RECOMPUTE].index(setting.recompute)
            sharded = setting.mesh, setting.reshards
            smaller = {(*sharded, setting.micro_batch, at) for at in range(rank, len(RECOMPUTE))}
            if (not is_single and sharded in misfits) or smaller & misfits:
                continue
            with suppress(ValueError):
                plans.append(plan := self.plan(setting))
                if not plan.fits:
                    misfits.add((*sharded, setting.micro_batch, rank))
                    if setting.recompute == "full" and not is_single:
                        misfits.add(sharded)
        return plans

    def _settings(self) -> Iterator[Setting]:
        """Yield all settings; on a mesh, those first that need the least memory."""
        for mesh in self.meshes():
            rows = self.recipe.batch_size // mesh.data_size
            pipeline = mesh.sizes.get(PIPELINE.name, 1)
            choices = {self.recipe.parallel.reshards, False} if mesh.num_shards > 1 else {True}
            for reshards, size, recompute in itertools.product(
                sorted(choices, reverse=True), _MICRO_BATCHES, reversed(RECOMPUTE)
            ):
                number, left = divmod(rows, size)
                if not left and (pipeline == 1 or number >= pipeline):
                    yield Setting(
                        mesh=mesh,
                        micro_batch=size,
                        num_micro_batches=number,
                        recompute=recompute,
                        reshards=reshards,
                    )

    def meshes(self) -> Iterator[MeshSizes]:
        """Yield the meshes of the devices that divide model and batch."""
        size, batch = self.cluster.size, self.recipe.batch_size
        experts = [n for n in _divisors(size) if n == 1 or self._mesh(shard=size, expert=n)]
        for tensor, context, pipeline in itertools.product(_divisors(size), repeat=3):
            rest, left = divmod(size, tensor * context * pipeline)
            if left or tensor > _MOST_TENSOR or pipeline > _MOST_PIPELINE or batch % rest:
                continue
            if tensor > self.cluster.device.per_machine:
                continue
            machine = max(1, self.cluster.device.per_machine // tensor)
            shards = {rest, *([machine] if machine < rest and not rest % machine else []), 1}
            for shard, expert in itertools.product(sorted(shards, reverse=True), experts):
                mesh = self._mesh(
                    replicate=rest // shard,
                    shard=shard,
                    context=context,
                    tensor=tensor,
                    pipeline=pipeline,
                    expert=expert,
                )
                if mesh is not None:
                    yield mesh

    def _mesh(self, **sizes: int) -> Mesh | None:
        """Return a mesh, unless it divides neither model nor batch, or borrows what it has not."""
        try:
            mesh = Mesh(**sizes)
            self.check(mesh)
        except ValueError:
            return None
        return mesh

    def _undivided(self) -> str:
        size, batch, device = self.cluster.size, self.recipe.batch_size, self.cluster.device
        tensors = range(1, min(_MOST_TENSOR, device.per_machine) + 1)
        parts = _divisors(batch), _divisors(self.recipe.seq_len), tensors
        every = itertools.product(*parts, range(1, _MOST_PIPELINE + 1))
        for each in sorted(every, key=lambda each: (abs(math.prod(each) - size), math.prod(each))):
            names = ("replicate", "context", "tensor", "pipeline")
            if math.prod(each) != size and self._mesh(**dict(zip(names, each, strict=True))):
                return (
                    f"no mesh of {size} processes divides {batch} sequences of "
                    f"{self.recipe.seq_len:,} tokens, the heads and the layers of the model: "
                    f"--hardware={device.name}x{math.prod(each)} does."
                )
        return f"no mesh divides {batch} sequences of {self.recipe.seq_len:,} tokens."

    def variants(self, plan: Plan) -> list[Variant]:
        """Return what a plan would be with one thing changed, the fastest first."""
        variants: list[Variant] = []
        setting = plan.setting
        rows = setting.micro_batch * setting.num_micro_batches

        def add(change: str, other: Setting) -> None:
            try:
                self.check(other.mesh)
                variants.append(Variant(change, self.plan(other)))
            except ValueError:
                return

        if setting.mesh.num_shards > 1:
            add(
                gathering_words(not setting.reshards),
                replace(setting, reshards=not setting.reshards),
            )
        for name in RECOMPUTE if self._kinds else ():
            if name != (setting.recompute or self.recompute):
                add(recompute_words(name), replace(setting, recompute=name))
        for size in _divisors(rows):
            if size in (setting.micro_batch * 2, setting.micro_batch // 2):
                other = replace(setting, micro_batch=size, num_micro_batches=rows // size)
                add(f"micro-batches of {size}", other)
        for mesh in self._neighbors(setting.mesh):
            if self.recipe.batch_size % mesh.data_size == 0:
                share = self.recipe.batch_size // mesh.data_size
                size = math.gcd(share, setting.micro_batch)
                other = replace(
                    setting, mesh=mesh, micro_batch=size, num_micro_batches=share // size
                )
                add(str(mesh), other)
        return sorted(variants, key=lambda variant: (not variant.plan.fits, variant.plan.step))

    def _neighbors(self, mesh: MeshSizes) -> Iterator[MeshSizes]:
        """Yield meshes with half of one axis given to another one."""
        names = [axis.name for axis in mesh.axes() if not axis.borrows]
        sizes = mesh.sizes
        for giver, taker in itertools.permutations(names, 2):
            if sizes[giver] % 2 == 0:
                moved = {giver: sizes[giver] // 2, taker: sizes[taker] * 2}
                try:
                    yield type(mesh)(**{**sizes, **moved})
                except ValueError:  # of an axis that borrows
                    continue


def _borrowing(mesh: MeshSizes) -> set[str]:
    return {axis.name for axis in mesh.axes() if axis.borrows}


def recompute_words(name: str) -> str:
    """Return what a choice of recomputation is."""
    words = {"none": "no recomputation", "selective": "selective recomputation"}
    return words.get(name, "full recomputation")


def gathering_words(reshards: bool) -> str:
    """Return when FSDP gathers weights."""
    return "weights gathered for each pass" if reshards else "weights gathered once a step"


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})

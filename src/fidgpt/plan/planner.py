"""Plans of a run: on the mesh that it has, or on every mesh that divides it, the fastest first."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from fidgpt import cost
from fidgpt.model.linear import declared_flops
from fidgpt.model.quantized import require_copies
from fidgpt.model.transformer import LanguageModel
from fidgpt.model.wrappers import Recompute, Recomputed, keep_all, keep_products
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
from fidgpt.parallel.pipeline import PIPELINE, PipelineParallel
from fidgpt.parallel.pipeline_schedule import TorchSchedule
from fidgpt.plan.estimate import Plan, Setting, Training, estimated
from fidgpt.plan.hardware import Cluster
from fidgpt.plan.trace import Trace, repeated, trace
from fidgpt.processes import Processes

__all__ = ["NoPlan", "Planner", "Recipe", "Variant", "recompute_words"]

RECOMPUTE = {"none": keep_all, "selective": keep_products, "full": None}
_MICRO_BATCHES = (1, 2, 4, 8, 16)
_MOST_TENSOR, _MOST_PIPELINE = 16, 64


class NoPlan(ValueError):
    """A run cannot be planned; the message says what would be the nearest thing that works."""


@runtime_checkable
class Recipe(Protocol):
    """What a run consists of; see the attributes of `Trainer`."""

    model: LanguageModel
    seq_len: int
    batch_size: int
    num_steps: int
    micro_batch_size: int | None
    optimizer: Callable[..., torch.optim.Optimizer]
    groups: Any
    trainable: Callable[[str, nn.Parameter], bool] | None
    loss: Any
    precision: Any
    parallel: DataParallel
    average: Any


Objective = Callable[[LanguageModel, Any], nn.Module]


@dataclass(frozen=True)
class Variant:
    """A plan beside another one, and what changes between them."""

    change: str
    plan: Plan


class Planner:
    """Plans one run; what depends on the shapes of a process's share alone is measured once.

    Args:
      recipe: of the run, its model on the meta device; it is left unchanged.
      objective: makes the module whose forward pass is the loss, from a model and a loss.
      sequences_per_row: sequences of `seq_len` + 1 tokens in a row of a batch.
      other_bytes: of other models that the objective computes with.
      flops_per_token: of the model, forward and backward.
      cluster: on which it would run.
    """

    def __init__(
        self,
        recipe: Recipe,
        objective: Objective,
        *,
        sequences_per_row: int = 1,
        other_bytes: int = 0,
        flops_per_token: int,
        cluster: Cluster,
    ) -> None:
        self.recipe = recipe
        self.cluster = cluster
        self._objective = objective
        self._sequences_per_row, self._other_bytes = sequences_per_row, other_bytes
        self._flops_per_token = flops_per_token
        self._traces: dict[object, Trace] = {}
        self._parts = dict(recipe.parallel.parts)
        self._average = copy.deepcopy(recipe.average)  # before the run's own holds weights
        with cost.one_block_of_each_kind(recipe.model) as kinds:
            self._small = cost.without_memory(recipe.model)
            self._kinds = {name: [*layers] for name, layers in kinds.items()}
        train_only(self._small, recipe.trainable)

    @cached_property
    def training(self) -> Training:
        """What a step computes on any mesh, once asked for: its state loads torch._dynamo."""
        recipe, pipeline = self.recipe, self._parts.get(PIPELINE.name)
        dtype = recipe.precision.dtype
        flops = {name: _flops(self._block(name), recipe.seq_len) for name in self._kinds}
        layers = {i: flops[name] for name, own in self._kinds.items() for i in own}
        first = _flops(getattr(self._small, "embedding", nn.Identity()), recipe.seq_len)
        last = _flops(self._small, recipe.seq_len) - sum(flops.values()) - first
        schedule, stages = TorchSchedule(), None
        if isinstance(pipeline, PipelineParallel):
            schedule, stages = pipeline.schedule, pipeline.stages
        return Training(
            dtype=str(dtype).removeprefix("torch."),
            itemsize=dtype.itemsize,
            state=self._state(),
            flops_per_token=self._flops_per_token,
            layer_flops=[layers[i] for i in sorted(layers)],
            other_flops=(first, last),
            tokens_per_step=recipe.batch_size * self._sequences_per_row * recipe.seq_len,
            other_bytes=self._other_bytes,
            num_steps=recipe.num_steps,
            schedule=schedule,
            stages=stages,
        )

    def _block(self, name: str) -> nn.Module:
        return self._small.get_submodule(f"blocks.{name}")

    def _state(self) -> float:
        """Return the bytes of the optimizer and of averages for each trained element.

        Both are made for one block of each kind; of those that read values, AdamW's are assumed.
        """
        twin = cost.without_memory(self._small)
        train_only(twin, self.recipe.trainable)
        trained = [p for p in twin.parameters() if p.requires_grad]
        number = max(1, sum(parameter.numel() for parameter in trained))
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        size = 0
        try:
            optimizer = self.recipe.optimizer(self.recipe.groups(twin))
            optimizer.step()
            size += cost.bytes_of(cost.tensors_in([*optimizer.state.values()]))
        except (RuntimeError, TypeError, ValueError):
            size += 8 * number
        if self._average is not None:
            try:
                self._average.begin(twin)
                size += cost.bytes_of(cost.tensors_in([self._average.state_dict()]))
            except (RuntimeError, TypeError, ValueError):
                size += 4 * number
        return size / number

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
        """Return the setting of the config on a mesh.

        Raises:
          NoPlan: the batch has fewer sequences than processes that read different ones.
        """
        rows = self.recipe.batch_size // mesh.data_size
        if rows < 1:
            raise NoPlan(
                f"batch_size={self.recipe.batch_size} is too small for the {mesh.data_size} "
                f"processes of {mesh} that read different sequences: choose {mesh.data_size} or "
                "more, or let some of them share the weights or tokens of a sequence "
                "(tensor, context, pipeline)."
            )
        rows = -(-self.recipe.batch_size // mesh.data_size)
        size = min(self.recipe.micro_batch_size or rows, rows)
        return Setting(
            mesh=mesh, micro_batch=size, num_micro_batches=-(-rows // size), recompute=""
        )

    def plan(self, setting: Setting) -> Plan:
        """Return what a run takes.

        Raises:
          ValueError: the mesh cannot divide the model.
        """
        return estimated(self._trace(setting), self.training, setting, self.cluster)

    def check(self, mesh: MeshSizes) -> None:
        """Raise ValueError if the model cannot be divided over a mesh."""
        require_copies(self._small, mesh.sizes)
        for name, part in self._used(mesh).items():
            if name != PIPELINE.name:
                part.check(self._small, mesh=mesh, seq_len=self.recipe.seq_len)
        size = mesh.sizes.get(PIPELINE.name, 1)
        most = len(self.training.layer_flops)
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

    def _trace(self, setting: Setting) -> Trace:
        mesh = setting.mesh
        sizes = {name: mesh.sizes[name] for name in self._used(mesh) if name != PIPELINE.name}
        key = (tuple(sizes.items()), setting.micro_batch, setting.recompute)
        if key not in self._traces:
            self._traces[key] = self._new_trace(setting, sizes)
        return self._traces[key]

    def _new_trace(self, setting: Setting, sizes: Mapping[str, int]) -> Trace:
        """Return a trace by way of others where it follows from them, else execute the pass."""
        if setting.micro_batch > 2:
            one, two = (self._trace(replace(setting, micro_batch=number)) for number in (1, 2))
            return repeated(one, two, setting.micro_batch)
        return self._execute(setting, sizes)

    def _execute(self, setting: Setting, sizes: Mapping[str, int]) -> Trace:
        model = cost.without_memory(self._small)
        train_only(model, self.recipe.trainable)
        if setting.recompute:
            for name in self._kinds:
                block = Recompute()(model.get_submodule(f"blocks.{name}"), layer=0)
                setattr(block, "recompute_keeps", RECOMPUTE[setting.recompute])  # noqa: B010
        used = self._used(setting.mesh)

        def divide(whole: nn.Module, processes: Callable[[str, int], Processes]) -> None:
            for name in sizes:
                used[name](whole, processes(name, sizes[name]))

        loss = copy.copy(self.recipe.loss)
        device = torch.device(self.cluster.device.kind)
        loss.chunk_size = loss.rows_on(device)  # and not as many as on the meta device
        return trace(
            model,
            lambda computing: self._objective(computing, loss),
            divide,
            replica=self.recipe.precision.replica,
            num_rows=setting.micro_batch,
            sequences_per_row=self._sequences_per_row,
            seq_len=self.recipe.seq_len,
            chunk_size=loss.chunk_size,
            kinds=self._kinds,
        )

    def search(self) -> list[Plan]:
        """Return the plans of every mesh, micro-batch and choice of recomputation that divides.

        Those that fit come first, the fastest of them at the front; the others follow by memory.

        Raises:
          NoPlan: no mesh of so many devices divides the run.
        """
        plans = []
        for mesh in self.meshes():
            rows = self.recipe.batch_size // mesh.data_size
            for size, recompute in itertools.product(_divisors(rows), RECOMPUTE):
                number = rows // size
                pipeline = mesh.sizes.get(PIPELINE.name, 1)
                if size not in _MICRO_BATCHES or (pipeline > 1 and number < pipeline):
                    continue
                setting = Setting(
                    mesh=mesh, micro_batch=size, num_micro_batches=number, recompute=recompute
                )
                try:
                    plans.append(self.plan(setting))
                except ValueError:  # such as of a schedule with another number of micro-batches
                    continue
        if not plans:
            raise NoPlan(self._undivided())
        return sorted(plans, key=lambda p: (not p.fits, p.step if p.fits else p.peak))

    def meshes(self) -> Iterator[MeshSizes]:
        """Yield the meshes of the devices that divide model and batch."""
        size, batch = self.cluster.size, self.recipe.batch_size
        has_experts = not self._is_refused(Mesh(shard=size, expert=size))
        experts = _divisors(size) if has_experts else [1]
        for tensor, context, pipeline in itertools.product(_divisors(size), repeat=3):
            rest, left = divmod(size, tensor * context * pipeline)
            if left or tensor > _MOST_TENSOR or pipeline > _MOST_PIPELINE or batch % rest:
                continue
            if tensor > self.cluster.device.per_machine:
                continue
            machine = max(1, self.cluster.device.per_machine // tensor)
            shards = {rest, *([machine] if machine < rest and not rest % machine else []), 1}
            for shard, expert in itertools.product(sorted(shards, reverse=True), experts):
                mesh = _mesh(rest // shard, shard, context, tensor, pipeline, expert)
                if mesh is not None and not self._is_refused(mesh):
                    yield mesh

    def _is_refused(self, mesh: MeshSizes) -> bool:
        try:
            self.check(mesh)
        except ValueError:
            return True
        return False

    def _undivided(self) -> str:
        size, batch = self.cluster.size, self.recipe.batch_size
        sizes = sorted(range(1, 2 * size), key=lambda n: (abs(n - size), n))[1:]
        for other in sizes:
            twin = copy.copy(self)
            twin.cluster = Cluster(device=self.cluster.device, size=other)
            if next(twin.meshes(), None) is not None:
                name = f"{self.cluster.device.name}x{other}"
                return (
                    f"no mesh of {size} processes divides {batch} sequences of "
                    f"{self.recipe.seq_len:,} tokens, the heads and the layers of the model: "
                    f"--hardware={name} does."
                )
        return f"no mesh divides {batch} sequences of {self.recipe.seq_len:,} tokens."

    def variants(self, plan: Plan) -> list[Variant]:
        """Return what a plan would be with one thing changed, the fastest first."""
        found: list[Variant] = []
        setting = plan.setting
        rows = setting.micro_batch * setting.num_micro_batches

        def add(change: str, other: Setting) -> None:
            try:
                self.check(other.mesh)
                found.append(Variant(change, self.plan(other)))
            except ValueError:
                return

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
        return sorted(found, key=lambda variant: (not variant.plan.fits, variant.plan.step))

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


def recompute_words(name: str) -> str:
    """Return what a choice of recomputation is."""
    words = {"none": "no recomputation", "selective": "selective recomputation"}
    return words.get(name, "full recomputation")


def _mesh(
    replicate: int, shard: int, context: int, tensor: int, pipeline: int, expert: int
) -> Mesh | None:
    try:
        return Mesh(
            replicate=replicate,
            shard=shard,
            context=context,
            tensor=tensor,
            pipeline=pipeline,
            expert=expert,
        )
    except ValueError:  # of an expert axis that does not divide those that it borrows
        return None


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _flops(module: nn.Module, seq_len: int) -> float:
    modules = module.named_modules(remove_duplicate=False)
    return float(sum(sum(declared_flops(one, seq_len=seq_len)) for _, one in modules))

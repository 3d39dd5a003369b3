"""The pieces of an optimizer step: micro-batches, gradients, schedules, and what it measures."""

import functools
import itertools
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from fidgpt.data import all_in_loss, count_loss_targets
from fidgpt.model.context import Division
from fidgpt.model.reports import Counts, Reports, Share, Tallier, Totals, collecting
from fidgpt.optim import SharesWork
from fidgpt.parallel import DataParallel
from fidgpt.parallel.gradients import norms_of_wholes, own_squares
from fidgpt.parallel.places import Places
from fidgpt.placement import is_sharded, shard_of
from fidgpt.processes.fused import FusedAllReduce, Handle
from fidgpt.ranges import require_size
from fidgpt.schedule import Schedule
from fidgpt.train.device import first_line, is_lack_of_memory, widest_dtype
from fidgpt.train.loss import NextToken
from fidgpt.train.run_directory import RunError

__all__ = ["ClipByValue", "GradientTransform", "StepMeters"]

Group = dict[str, Any]


class MicroBatch(NamedTuple):
    """Sequences that one device computes at once.

    Attributes:
      rows: on the device.
      num_targets: tokens that count in the loss.
      all_in_loss: whether all tokens do.
      is_idle: whether it counts for nothing, and is computed only because others compute.
    """

    rows: Int64[Tensor, "rows window"]
    num_targets: int
    all_in_loss: bool
    is_idle: bool = False


def micro_batches(
    batch: Int64[Tensor, "rows window"],
    *,
    size: int | None,
    device: torch.device,
    division: Division | None = None,
) -> list[MicroBatch]:
    """Split a batch, and copy it to a device at once.

    Reading a number from an accelerator waits for all queued work, and leaves it idle until Python
    has queued more. So tokens are counted where they were made, not micro-batch by micro-batch.

    Args:
      batch: on the CPU, as streams make it, or on the device.
      size: rows of a micro-batch, at most; None for all of them.
      device: where they are computed.
      division: of the tokens of each row over processes; None if each computes whole rows.
    """
    size = size or max(1, len(batch))
    own = batch if division is None else torch.cat([batch[:, :1], division.own(batch[:, 1:])], 1)
    counts = [
        (count_loss_targets(part), all_in_loss(rows))
        for part, rows in zip(own.split(size), batch.split(size), strict=True)
    ]
    if device.type == "cuda" and batch.device.type == "cpu":
        batch = batch.pin_memory()
    parts = batch.to(device, non_blocking=batch.is_pinned()).split(size)
    return [MicroBatch(rows, *count) for rows, count in zip(parts, counts, strict=True)]


def fill_up(parts: Sequence[MicroBatch], number: int) -> list[MicroBatch]:
    """Return so many micro-batches, by idle ones: processes gather sharded weights together."""
    last = parts[-1]
    idle = last._replace(rows=last.rows[-1:], num_targets=0, is_idle=True)
    return [*parts, *[idle] * (number - len(parts))]


class BatchShares:
    """What each micro-batch of this process contributes to the losses of an optimizer step.

    Gradients are summed over micro-batches and averaged over processes, where each token is to
    weigh the same whichever micro-batch it is in.

    Args:
      parts: micro-batches of this process.
      fused: by which processes count their tokens.
      parallel: the processes of the step.
      accumulates: whether any process has several micro-batches.
    """

    def __init__(
        self,
        parts: Sequence[MicroBatch],
        fused: FusedAllReduce,
        parallel: DataParallel,
        *,
        accumulates: bool,
    ) -> None:
        self.parts = parts
        self.parallel = parallel
        self.accumulates = accumulates
        self.num_rows = sum(len(part.rows) for part in parts if not part.is_idle)
        self._num_targets = sum(part.num_targets for part in parts)
        self._counts = None
        if parallel.tokens.size > 1:
            self._counts = fused.sum(self._num_targets), fused.sum(self.num_rows)
        self._counted: Sequence[Handle] = ()
        self._totals: tuple[Sequence[int | Tensor], Counts] | None = None

    @functools.cached_property
    def targets_per_process(self) -> float | Float[Tensor, ""]:
        """The mean number of targets of a process, on the device if there are several."""
        if self._counts is None:
            return max(self._num_targets / self.parallel.tokens.size, 1.0)
        return (self._counts[0].value / self.parallel.tokens.size).clamp_min(1.0)

    @functools.cached_property
    def rows_of_all(self) -> int | Int64[Tensor, ""]:
        """The number of rows over all processes."""
        return self.num_rows if self._counts is None else self._counts[1].value.long()

    def of(self, part: MicroBatch) -> "PassShare | None":
        """Return the share of a micro-batch; None if it is the whole batch."""
        return PassShare(self, part) if self.is_shared else None

    @property
    def is_shared(self) -> bool:
        """Whether there are several micro-batches, of this process or of others."""
        return self.parallel.tokens.size > 1 or self.accumulates

    def count(self, objective: NextToken, fused: FusedAllReduce) -> None:
        """Count what losses must know of the batch before the first backward pass.

        If that is of what the model computes, this is a pass without gradients, which draws the
        same random numbers as the passes that follow.
        """
        device = self.parallel.device
        sums: Counts = []
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            for part in self.parts:
                with collecting() as reports:
                    objective.count(part.rows)
                if not part.is_idle:
                    own = reports.counted
                    sums = [a + b for a, b in zip(sums, own, strict=True)] if sums else own
        self._counted = [fused.sum(one) for one in sums]

    @functools.cached_property
    def counted(self) -> Sequence[Tensor]:
        """What was counted, over all processes; empty if nothing was."""
        return [one.value for one in self._counted]

    def totals(
        self, fixed: Sequence[int], counted: Counts, *, num_rows: int
    ) -> tuple[Sequence[int | Tensor], Counts]:
        """Return the sums of counts of a micro-batch over all micro-batches of all processes."""
        if self._totals is None:
            # Those of a micro-batch's shape are in proportion to its rows.
            many = max(1, num_rows)
            totals: Sequence[int | Tensor] = [n * self.rows_of_all // many for n in fixed]
            if (sharing := self.parallel.places.rows).size > 1:
                # Parts of sequences may be of unequal lengths, which all steps share.
                key, each = (self.parts[0].rows.shape[1], len(fixed)), [n // many for n in fixed]
                of_row = self.parallel.sums_of_shapes(key, each)
                totals = [n * self.rows_of_all // sharing.size for n in of_row]
            self._totals = totals, self.counted or self.parallel.tokens.all_reduce(counted)
        return self._totals


class PassShare:
    """The `Share` of a micro-batch."""

    def __init__(self, batch: BatchShares, part: MicroBatch) -> None:
        self.num_processes = batch.parallel.tokens.size
        self._batch = batch
        self._part = part
        self._of_sequences: Counts | None = None
        self._of_targets: float | Tensor | None = None

    @property
    def of_targets(self) -> float | Float[Tensor, ""]:
        """The fraction of the tokens that count in the loss, times the number of processes."""
        if self._of_targets is None:
            self._of_targets = self._part.num_targets / self._batch.targets_per_process
        return self._of_targets

    def totals(self, fixed: Sequence[int], counted: Counts, by_sequence: Counts) -> Totals:
        """Return the sums of these counts over the step, or the processes that share sequences."""
        if self._of_sequences is None:
            self._of_sequences = self._batch.parallel.places.rows.all_reduce(by_sequence)
        num_rows = len(self._part.rows)
        return *self._batch.totals(fixed, counted, num_rows=num_rows), self._of_sequences


_EPS_OF_TORCH = 1e-6  # which its clipping adds to a norm


@runtime_checkable
class GradientTransform(Protocol):
    """Changes gradients in place, before their norm is measured and clipped."""

    def __call__(self, parameters: Iterable[nn.Parameter], /) -> None: ...


def require_bound(max_grad_norm: float | None) -> None:
    """Raise ValueError unless a bound of gradients is positive."""
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(f"{max_grad_norm=} must be above 0, or None for no bound.")


class ClipByValue:
    """Clips every element of a gradient to [-max_grad_value, max_grad_value].

    Args:
      max_grad_value: above 0.

    Raises:
      ValueError: it is not.
    """

    def __init__(self, max_grad_value: float) -> None:
        if not max_grad_value > 0:
            raise ValueError(f"{max_grad_value=} must be above 0.")
        self.max_grad_value = max_grad_value

    def __call__(self, parameters: Iterable[nn.Parameter]) -> None:
        chosen = [p for p in parameters if p.grad is not None]
        for (some,) in by_mesh(chosen):
            nn.utils.clip_grad_value_(some, self.max_grad_value)


class GradientNorms:
    """Euclidean norms of gradients over all processes, of each parameter and of all together.

    Args:
      parameters: those without a gradient are ignored.
      fused: by which processes that hold parts of parameters sum their squares, and which is
        started before a norm is used; None if each communicates by itself, or has all of them.
      places: of this process, needed with `fused`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        fused: FusedAllReduce | None = None,
        places: Places | None = None,
    ) -> None:
        self._parameters = [p for p in parameters if p.grad is not None]
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        self._own = self._squares = None
        if fused is None or places is None or not gradients:
            self._own = norms_of(gradients, self._parameters)
        else:
            squares = own_squares(gradients, self._parameters, places)
            self._squares = fused.sum_everywhere(squares)

    @functools.cached_property
    def _norms(self) -> Float[Tensor, " parameters"]:
        if self._squares is None:
            assert self._own is not None
            return self._own
        return self._squares.value.sqrt().float()

    @functools.cached_property
    def total(self) -> Float[Tensor, ""]:
        """The norm of all of them as one vector; a tensor, to avoid waiting for it."""
        return torch.linalg.vector_norm(self._norms)

    def clip(self, max_norm: float | None) -> None:
        """Scale the gradients down, so that their total norm is at most `max_norm`."""
        if max_norm is None or self._is_within(max_norm):
            return
        for (some,) in by_mesh(self._parameters):
            nn.utils.clip_grads_with_norm_(some, max_norm, self.total)

    def _is_within(self, max_norm: float) -> bool:
        """Whether torch would multiply by 1, a needless pass over memory.

        Not checked on a GPU, where reading the norm would wait for queued work.
        """
        return self.total.device.type == "cpu" and bool(self.total + _EPS_OF_TORCH < max_norm)

    def over(self, parameters: Iterable[nn.Parameter]) -> Float[Tensor, ""]:
        """Return the norm over some of the parameters, as it was before clipping."""
        chosen = {id(parameter) for parameter in parameters}
        norms = zip(self._parameters, self._norms.unbind(), strict=True)
        own = [norm for parameter, norm in norms if id(parameter) in chosen]
        return torch.linalg.vector_norm(torch.stack(own)) if own else self._norms.new_zeros(())

    def not_finite(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients hold NaN or inf, in the model's order."""
        bad = (~self._norms.isfinite()).tolist()
        return [p for p, is_bad in zip(self._parameters, bad, strict=True) if is_bad]


@torch.no_grad()
def norms_of(
    tensors: Sequence[Tensor], parameters: Sequence[nn.Parameter] | None = None
) -> Float[Tensor, " tensors"]:
    """Return the Euclidean norm of each whole tensor, of which this process may hold a part.

    Args:
      tensors: of the parameters, as gradients, or the parameters themselves.
      parameters: to which they belong; defaults to the tensors.
    """
    if not tensors:
        return torch.zeros(0)
    norms: list[Any] = [None] * len(tensors)
    for some, indices in by_mesh(tensors, range(len(tensors))):
        # One launch for all of them, as in torch's own clipping.
        each: Any = torch._foreach_norm(some)  # pyright: ignore[reportPrivateImportUsage]
        if is_sharded(each[0]):  # stacked first, for one all-reduce
            joined: Any = torch.stack(each)
            each = joined.full_tensor().unbind()
        for index, norm in zip(indices, each, strict=True):
            norms[index] = norm
    return norms_of_wholes(torch.stack(norms), tensors if parameters is None else parameters)


def by_mesh(tensors: Sequence[Tensor], *others: Sequence[Any]) -> Iterator[list[list[Any]]]:
    """Yield tensors on the same processes, which one operation may take together.

    Args:
      tensors: on any processes.
      *others: lists of the same length, of which the corresponding items are yielded as well.
    """
    # By attribute: torch takes more than a second to import the class of sharded tensors.
    meshes = [getattr(tensor, "device_mesh", None) for tensor in tensors]
    for mesh in dict.fromkeys(meshes):
        chosen = [own == mesh for own in meshes]
        yield [[*itertools.compress(one, chosen)] for one in (tensors, *others)]


class GroupSchedules:
    """Multiplies the configured settings of groups at every step.

    Args:
      optimizer: its groups are changed in place.
      schedule: multiplier of every group's learning rate at a step.
      others: multipliers of other settings, by their name in a group.

    Raises:
      RunError: a setting is `lr`, or not a number in every group.
    """

    def __init__(
        self, optimizer: Optimizer, *, schedule: Schedule, others: Mapping[str, Schedule]
    ) -> None:
        groups = optimizer.param_groups
        for name in others:
            _require_number(name, groups)
        self._optimizer = optimizer  # whose list of groups changes when it is restored
        self._schedules = {"lr": schedule, **others}
        self._peaks = [
            {"lr": peak_rate(group), **{name: group[name] for name in others if name in group}}
            for group in groups
        ]

    def apply(self, step: int) -> None:
        """Set all settings for a step, counted from 0."""
        multipliers = {name: schedule(step) for name, schedule in self._schedules.items()}
        for group, peaks in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group.update((name, peak * multipliers[name]) for name, peak in peaks.items())


def peak_rate(group: Group) -> float:
    """Return the peak learning rate of a group, scaled by its `lr_scale` if it has one."""
    return group["lr"] * group.get("lr_scale", 1.0)


def _require_number(name: str, groups: Sequence[Group]) -> None:
    if name == "lr":
        raise RunError(
            "the trainer's schedules: the learning rate has a schedule already, `schedule`."
        )
    found = [group[name] for group in groups if name in group]
    wrong = [v for v in found if isinstance(v, bool) or not isinstance(v, int | float)]
    if wrong or not found:
        known = sorted(
            key
            for key, value in groups[0].items()
            if isinstance(value, float) and key not in ("lr", "lr_scale")
        )
        problem = f"is {wrong[0]!r}, not a number" if wrong else "is unknown to the optimizer"
        raise RunError(
            f"the trainer's schedules: the setting {name!r} {problem}; choose one of "
            f"{', '.join(known) or 'none'}."
        )


def make_optimizer(
    make: Callable[..., Optimizer], groups: Sequence[Group], *, parallel: DataParallel
) -> Optimizer:
    """Make the optimizer of parameter groups, which shares work and state with other processes.

    Raises:
      RunError: it refuses its arguments, or needs whole matrices, of which there are parts here.
    """
    try:
        optimizer = make(groups)
    except (TypeError, ValueError) as error:
        raise RunError(f"the optimizer refuses its arguments: {error}") from error
    has_shards = any(shard_of(p) is not None for group in groups for p in group["params"])
    if has_shards and type(optimizer) in (torch.optim.Muon, torch.optim.Adafactor):
        name = type(optimizer).__name__
        raise RunError(
            f"torch.optim.{name} needs whole matrices, which the mesh divides: use fidgpt's {name} "
            f"(fiddler:use_{name.lower()}), or a mesh that divides none, as without tensor."
        )
    if parallel.world_size > 1 and isinstance(optimizer, SharesWork):
        optimizer.share_work(parallel.world)
    return optimizer


def step_optimizer(optimizer: Optimizer) -> None:
    """Take a step; RunError if the optimizer cannot step such weights."""
    try:
        optimizer.step()
    except Exception as error:  # custom optimizers raise anything
        if is_lack_of_memory(error):
            raise
        sharded = whole = ""
        if any(is_sharded(p) for group in optimizer.param_groups for p in group["params"]):
            sharded = ", which are sharded over processes"
            whole = ", or keep whole weights in each process (DataParallel)"
        raise RunError(
            f"the optimizer {type(optimizer).__name__} cannot step the weights of this "
            f"model{sharded}: {first_line(error).rstrip('.'):.200}. Use another optimizer{whole}."
        ) from error


class StepMeters:
    """Measures three numbers for each parameter group every `every` steps.

    `grad_norm/<group>`, before clipping; `learning_rate/<group>`; and `update_ratio/<group>`, the
    norm of the update over the norm of the weights, typically about 1e-3. Such a step keeps a copy
    of the trained weights.

    Args:
      every: steps.

    Raises:
      ValueError: it is below 1.
    """

    def __init__(self, *, every: int = 10) -> None:
        require_size(every=every)
        self.every = every

    def due(self, step: int) -> bool:
        """Return whether to measure a step, counted from 1."""
        return step % self.every == 0

    @contextmanager
    def measuring(
        self, groups: Sequence[Group], norms: GradientNorms
    ) -> Iterator[dict[str, float | Tensor]]:
        """Wrap the optimizer's step; the dict is filled when it is done."""
        before = [[p.detach().clone() for p in group["params"]] for group in groups]
        measured: dict[str, float | Tensor] = {}
        yield measured
        for name, group, old in zip(_names(groups), groups, before, strict=True):
            parameters: list[nn.Parameter] = group["params"]
            weights = torch.linalg.vector_norm(norms_of(old, parameters))
            with torch.no_grad():
                steps = [p - o for p, o in zip(parameters, old, strict=True)]
                moved = norms_of(steps, parameters)
            measured[f"grad_norm/{name}"] = norms.over(parameters)
            # Weights that are all zero have no norm to compare with.
            update, dtype = torch.linalg.vector_norm(moved), widest_dtype(weights.device)
            ratio = update.to(dtype) / weights.to(dtype)
            measured[f"update_ratio/{name}"] = torch.where(weights == 0, 0.0, ratio)
            measured[f"learning_rate/{name}"] = float(group["lr"])


def _names(groups: Sequence[Group]) -> list[str]:
    """Return a name for each group that every tracker accepts; duplicates are numbered."""
    plain = [
        re.sub(r"\W+", "_", str(group.get("name", number)), flags=re.ASCII)
        for number, group in enumerate(groups)
    ]
    return [
        f"{name}_{plain[: number + 1].count(name)}" if plain.count(name) > 1 else name
        for number, name in enumerate(plain)
    ]


_MAX_NUMBERS = 1024  # of one metric in a row, which should stay readable


class StepReports:
    """Accumulates the reports of micro-batches, and settles them after the step."""

    def __init__(self) -> None:
        self._means: dict[str, Tensor] = {}
        self._tallies: dict[Tallier, Tensor] = {}
        self._sums: Handle | None = None
        self._summed: dict[Tallier, Handle] = {}
        self._num_processes = 1

    @torch.no_grad()
    def add(self, reports: Reports, share: Share | None) -> None:
        """Add those of a micro-batch."""
        for name, value in {**reports.metrics_of(share), **reports.losses_of(share)}.items():
            part = value.detach().float()
            self._means[name] = self._means[name] + part if name in self._means else part
        for part, tally in reports.tallies.items():
            # Cloned because a CUDA graph overwrites its outputs.
            before = self._tallies.get(part)
            self._tallies[part] = tally.clone() if before is None else before + tally

    def join(self, fused: FusedAllReduce, parallel: DataParallel) -> None:
        """Let the fused all-reduce of a step sum what was reported over the processes."""
        self._num_processes = parallel.tokens.size
        self._sums = fused.sum(torch.stack(list(self._means.values())))
        self._summed = {part: fused.sum(tally) for part, tally in self._tallies.items()}

    def means(self) -> dict[str, Tensor]:
        """Return what was reported, the same on every process."""
        assert self._sums is not None, "join() has not been called"
        means = self._sums.value / self._num_processes
        return dict(zip(self._means, means.unbind(), strict=True))

    def settle(self) -> dict[str, Tensor | list[Tensor]]:
        """Give every module its tally; return what they measure, the same on every process.

        A number that several modules measure is averaged over them under its name, and listed under
        `name/layers` too. A vector is only listed, if there are no more than 1,024 numbers.
        """
        measured: dict[str, list[Tensor]] = {}
        for part, tally in self._summed.items():
            for name, value in part.settle(tally.value).items():
                measured.setdefault(name, []).append(value)
        row: dict[str, Tensor | list[Tensor]] = {}
        for name, values in measured.items():
            if not values[0].dim():
                row[name] = torch.stack(values).mean()
            if sum(value.numel() for value in values) <= _MAX_NUMBERS:
                row[f"{name}/layers"] = values
        return row


class Timing:
    """Seconds of phases, which the device may still be computing."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, float | tuple[torch.Event, torch.Event]]] = []

    def add(self, phase: str, seconds: float | tuple[torch.Event, torch.Event]) -> None:
        """Add seconds to a phase, or what passes between two events."""
        self._parts.append((phase, seconds))

    def read(self) -> dict[str, float]:
        """Return the seconds of each phase by `seconds/<phase>`; waits for the last one."""
        total: dict[str, float] = defaultdict(float)
        for phase, seconds in self._parts:
            if isinstance(seconds, tuple):
                begin, end = seconds
                end.synchronize()
                seconds = begin.elapsed_time(end) / 1e3
            total[f"seconds/{phase}"] += seconds
        return total


class Stopwatch:
    """Adds up seconds by phase; on an accelerator, whose work is queued, by its own clock.

    Args:
      device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._timing = Timing()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase."""
        if self._device.type == "cpu":
            begin = time.perf_counter()
            yield
            self._timing.add(name, time.perf_counter() - begin)
        else:
            begin, end = (torch.Event(self._device, enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._timing.add(name, (begin, end))

    def take(self) -> Timing:
        """Return the phases since the last call."""
        taken, self._timing = self._timing, Timing()
        return taken

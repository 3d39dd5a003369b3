"""The state of training: model, optimizer and step."""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.optim import Optimizer

from fidgpt.model.reports import collecting
from fidgpt.model.transformer import LanguageModel
from fidgpt.optim.groups import Grouping
from fidgpt.parallel import DataParallel
from fidgpt.schedule import Schedule
from fidgpt.train.averaging import Average
from fidgpt.train.divergence import Diverged, Divergence, Guard, Verdict, report
from fidgpt.train.loss import CrossEntropy, NextToken
from fidgpt.train.meters import StepMeters, StepReports, Stopwatch
from fidgpt.train.precision import Precision
from fidgpt.train.run_directory import RunError
from fidgpt.train.step import (
    GradientNorms,
    GradientTransform,
    GroupSchedules,
    micro_batches,
    require_steps,
)


@runtime_checkable
class Stateful(Protocol):
    """A part whose memory goes into checkpoints, as torch's optimizers and modules do it."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values (numbers, strings, None, lists, tuples, dicts)."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Puts back what `state_dict` gave."""
        ...


class TrainState:
    """Takes optimizer steps.

    Args:
      model: float32 weights, with memory on the device; what checkpoints hold.
      optimizer: makes the optimizer from parameter groups.
      groups: deals the parameters into groups.
      schedule: multiplier of each group's learning rate at each step.
      loss: from features, unembedding and targets to a number.
      precision: makes the replica that computes.
      parallel: the processes of the run.
      micro_batch_size: rows computed at once; all of them unless said.
      max_grad_norm: gradients are scaled down to this norm; None leaves them.
      gradient_transform: changes gradients in place, before their norm is measured.
      guard: judges steps whose numbers are finite, before they are taken.
      divergence: judges the others; without it they end the run.
      average: of the weights.
      meters: what is measured of each parameter group.
      schedules: multipliers of other settings of the groups than the learning rate, by name.

    Parts with a memory are copied, so that a config can be trained more than once.

    Attributes:
      clock: how long forward and backward passes and the optimizer take.
      average: of the weights; None where there is none.
      divergence: None where a step that is no number ends the run.
      settings: what each parameter group was configured with, as far as it is plain values.
      stateful: what else a checkpoint must hold, by name.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        optimizer: Callable[..., Optimizer],
        groups: Grouping,
        schedule: Schedule,
        loss: CrossEntropy,
        precision: Precision,
        parallel: DataParallel,
        micro_batch_size: int | None,
        max_grad_norm: float | None,
        gradient_transform: GradientTransform | None = None,
        guard: Guard | None = None,
        divergence: Divergence | None = None,
        average: Average | None = None,
        meters: StepMeters | None = None,
        schedules: Mapping[str, Schedule] | None = None,
    ) -> None:
        self.model = model
        self.clock = Stopwatch(parallel.device)
        self.replica = parallel.replica(model, precision)
        dealt = groups(model)
        require_steps(optimizer, dealt)
        self.optimizer = _made(optimizer, dealt)
        self.settings = [_settings(group) for group in self.optimizer.param_groups]
        self.divergence = copy.deepcopy(divergence)
        self.average = copy.deepcopy(average)
        if self.average is not None:
            self.average.begin(model)
        self._guard = copy.deepcopy(guard)
        self._scaling = copy.deepcopy(precision.scaling)
        parts = {
            "guard": self._guard,
            "divergence": self.divergence,
            "average": self.average,
            "scaling": self._scaling,
        }
        self.stateful: dict[str, Stateful] = {
            name: part for name, part in parts.items() if isinstance(part, Stateful)
        }
        # Not the average's: that one begins with weights, see `restored`.
        self._memories = {
            name: copy.deepcopy(part.state_dict())
            for name, part in self.stateful.items()
            if part is not self.average
        }
        self._module = parallel.place(NextToken(self.replica, loss))
        self._schedules = _schedules(self.optimizer, schedule, schedules or {})
        self._precision = precision
        self._parallel = parallel
        self._micro_batch_size = micro_batch_size
        self._max_grad_norm = max_grad_norm
        self._gradient_transform = gradient_transform
        self._meters = meters

    @property
    def shift(self) -> int:
        """How many batches further on in their order the run reads than its steps say."""
        return 0 if self.divergence is None else self.divergence.shift

    def begin_anew(self) -> None:
        """Lets parts with a memory forget, before what a checkpoint holds of them is put back."""
        for name, memory in self._memories.items():
            self.stateful[name].load_state_dict(copy.deepcopy(memory))
        if self.average is not None:
            self.average.has_history = False

    def restored(self, settings: list[dict[str, Any]]) -> None:
        """To be called once a checkpoint was copied into model and optimizer.

        Optimizers restore their settings with their state. A setting that was configured then as
        it is now stays as restored, because some optimizers keep state there; one that the config
        changed since takes its new value, which would otherwise be ignored in silence.

        Args:
          settings: those of the learner that saved the checkpoint.
        """
        for group, before, now in zip(
            self.optimizer.param_groups, settings, self.settings, strict=True
        ):
            changed = {name for name in now if name not in before or now[name] != before[name]}
            group.update((name, now[name]) for name in changed)
        if self.average is not None and not self.average.has_history:
            self.average.begin(self.model)  # the run had none so far
        self._precision.push_weights(self.model, self.replica)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, model and replica have the averaged weights."""
        assert self.average is not None
        self.average.exchange(self.model)
        try:
            self._precision.push_weights(self.model, self.replica)
            yield
        finally:
            self.average.exchange(self.model)
            self._precision.push_weights(self.model, self.replica)

    def update(self, batch: Int64[Tensor, "rows window"], *, step: int) -> dict[str, Any]:
        """One optimizer step on this process's rows.

        Returns `loss` (the mean over all processes, before the step, without what parts of the
        model add to it), `grad_norm`, `learning_rate` (of the first group), what parts report, and
        `skipped` (0 or 1) where a part may leave steps out. A step that is left out changes neither
        weights nor what the optimizer, the average and parts of the model remember.

        Raises:
          Diverged: loss or gradients are no numbers, and nothing says to leave such a step out.
        """
        reports = self._backward(batch)
        with self.clock.phase("optimizer"):
            return self._stepped(reports, step)

    def _stepped(self, reports: StepReports, step: int) -> dict[str, Any]:
        """What `update` does once there are gradients."""
        self._precision.pull_gradients(self.model, self.replica)
        if self._scaling is not None:
            self._scaling.unscale(self.model.parameters())
        if self._gradient_transform is not None:
            self._gradient_transform(self.model.parameters())
        norms = GradientNorms(self.model.parameters())
        self._schedules.apply(step)
        rate = float(self.optimizer.param_groups[0]["lr"])
        judges = (self._guard, self.divergence, self._scaling)
        is_judged = any(judge is not None for judge in judges)
        # Where nothing may leave the step out, it does not wait for its numbers.
        measured = {} if is_judged else self._take(norms, step)
        means = reports.means(self._parallel)
        row = {
            "loss": means["loss"],
            "grad_norm": norms.total.item(),
            "learning_rate": rate,
        } | means
        if self._scaling is not None:
            row["loss_scale"] = self._scaling.scale
        verdict = self._verdict(row, norms)
        if is_judged and verdict is Verdict.TAKE:
            measured = self._take(norms, step)
        self.optimizer.zero_grad()
        if is_judged:
            row["skipped"] = int(verdict is Verdict.SKIP)
        return row if row.get("skipped") else row | reports.settle(self._parallel) | measured

    def _verdict(self, row: dict[str, float], norms: GradientNorms) -> Verdict:
        """Whether the step is taken, the same on every process."""
        numbers = {name: row[name] for name in ("loss", "grad_norm")}
        is_finite = all(map(math.isfinite, numbers.values()))
        scaling = self._scaling if math.isfinite(row["loss"]) else None  # gradients alone overflow
        if scaling is not None and not scaling.takes(is_finite=is_finite):
            return Verdict.SKIP
        verdict = Verdict.TAKE if is_finite else Verdict.ABORT
        if self.divergence is not None:
            verdict = self.divergence(is_finite=is_finite)
        if verdict in (Verdict.ABORT, Verdict.ROLL_BACK):
            self.optimizer.zero_grad()
            raise Diverged(verdict, self._report(row, norms))
        if is_finite and self._guard is not None:
            return self._guard(**numbers)
        return verdict

    def _report(self, row: dict[str, float], norms: GradientNorms) -> str:
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        spoilt = [names[id(parameter)] for parameter in norms.not_finite()]
        return report(row, spoilt=spoilt, num_parameters=len(names))

    def _take(self, norms: GradientNorms, step: int) -> dict[str, float]:
        """Moves the weights; returns what was measured of each group, if it is time."""
        measuring = contextlib.nullcontext(dict[str, float]())
        if self._meters is not None and self._meters.due(step + 1):
            measuring = self._meters.measuring(self.optimizer.param_groups, norms)
        with measuring as measured:
            norms.clip(self._max_grad_norm)
            self.optimizer.step()
        self.optimizer.zero_grad()
        self._precision.push_weights(self.model, self.replica)
        if self.average is not None:
            self.average.update(self.model, step=step)
        return measured

    def _backward(self, batch: Int64[Tensor, "rows window"]) -> StepReports:
        """Adds up gradients of micro-batches, in float32; returns what was reported meanwhile."""
        step, parallel = StepReports(), self._parallel
        parts = micro_batches(batch, size=self._micro_batch_size, device=parallel.device)
        # Each token weighs alike, whichever process and micro-batch it is in.
        total = torch.tensor(sum(part.num_learned for part in parts), dtype=torch.float64)
        even_share = parallel.mean(total).item()
        for number, part in enumerate(parts, start=1):
            last = number == len(parts)
            alone = contextlib.nullcontext() if last else parallel.accumulating(self._module)
            share = part.num_learned / max(even_share, 1.0)
            if last and parallel.world_size > 1:  # which add up what the replica has
                self._precision.lend_gradients(self.model, self.replica)
            with alone:
                with self.clock.phase("forward"), collecting() as reports:
                    loss = self._module(part.rows, part.all_in_loss) * share
                with self.clock.phase("backward"):
                    (loss if self._scaling is None else self._scaling.scaled(loss)).backward()
            step.add(reports, share=share)
            if not last:
                self._precision.pull_gradients(self.model, self.replica)
        return step


def _made(optimizer: Callable[..., Optimizer], groups: list[dict[str, Any]]) -> Optimizer:
    """The optimizer; what it refuses is a mistake in the config, found as late as the model is."""
    try:
        return optimizer(groups)
    except (TypeError, ValueError) as error:
        raise RunError(f"the optimizer refuses its arguments: {error}") from error


def _schedules(
    optimizer: Optimizer, schedule: Schedule, others: Mapping[str, Schedule]
) -> GroupSchedules:
    try:
        return GroupSchedules(optimizer, schedule=schedule, others=others)
    except ValueError as error:
        raise RunError(f"the trainer's schedules: {error}") from error


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in group.items() if name != "params"}
    return {name: value for name, value in plain.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)

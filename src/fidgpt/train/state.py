"""The state of training: model, optimizer and step, and what else a checkpoint restores."""

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.optim import Optimizer

from fidgpt.data import BegunStage, TrainingStream
from fidgpt.model.transformer import LanguageModel
from fidgpt.train.averaging import Average, EvaluationWeights
from fidgpt.train.divergence import Decision, Diverged, Divergence, Guard, RollBack, report
from fidgpt.train.gradients import GradientNorms, norms_of
from fidgpt.train.loss import NextToken
from fidgpt.train.micro_batches import BatchShares
from fidgpt.train.optimizer_groups import GroupSchedules
from fidgpt.train.precision import Precision
from fidgpt.train.run_directory import RunError
from fidgpt.train.step_metrics import Stopwatch

__all__ = ["Stateful"]


@runtime_checkable
class Stateful(Protocol):
    """A component whose state goes into checkpoints, as with torch's optimizers and modules."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values (numbers, strings, None, lists, tuples, dicts)."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restore what `state_dict` returned."""


@dataclass(eq=False)
class TrainState:
    """Model, optimizer and step of a run, with every other component that has state.

    Args:
      model: float32 weights with memory on the device; what checkpoints hold.
      optimizer: over the parameters of this model.
      schedules: set the optimizer's settings at each step.
      replica: computes, in the number format of `precision`; may be the model itself.
      objective: replica and loss as one module.
      module: the objective, wrapped for data parallelism.
      precision: copies weights to the replica.
      guard: judges steps with finite numbers before they are applied.
      divergence: judges the others; None aborts the run.
      average: of the weights, or None.
      train_step: takes the steps; not copied.

    The other components with state are copied, so that one config can be trained more than once.

    Attributes:
      step: optimizer steps done.
      scaling: of the loss; None where the number format needs none.
      settings: what each parameter group was configured with, as far as it is plain values.
      stateful: what a checkpoint holds besides model and optimizer, by name.
      clock: time spent in each phase of the step.
      ahead: the batch of the next step, if it was read ahead.
      seconds: of this process in each phase of the last finished step; empty before the first.
    """

    model: LanguageModel
    optimizer: Optimizer
    _: KW_ONLY
    schedules: GroupSchedules
    replica: LanguageModel
    objective: NextToken
    module: nn.Module
    precision: Precision
    guard: Guard | None
    divergence: Divergence | None
    average: Average | None
    train_step: object = None

    def __post_init__(self) -> None:
        self.step = 0
        self.scaling = self.precision.scaling
        for name in ("guard", "divergence", "average", "scaling"):
            setattr(self, name, copy.deepcopy(getattr(self, name)))
        self.settings = [
            {name: value for name, value in group.items() if name != "params" and _is_plain(value)}
            for group in self.optimizer.param_groups
        ]
        self.clock = Stopwatch(self.model.device)
        self.next_batch: BatchShares | None = None
        self.seconds: Sequence[float] = ()
        if self.average is not None:
            self.average.begin(self.model)
        names = ("guard", "divergence", "average", "scaling", "train_step")
        self.stateful: dict[str, Stateful] = {
            name: part for name in names if isinstance(part := getattr(self, name), Stateful)
        }

    @property
    def shift(self) -> int:
        """How many batches the data is ahead of the step count."""
        return 0 if self.divergence is None else self.divergence.shift

    @property
    def may_skip(self) -> bool:
        """Whether some component may skip a step, which then has to wait for its numbers."""
        return any(part is not None for part in (self.guard, self.divergence, self.scaling))

    def restored(self, step: int, settings: Sequence[Mapping[str, Any]]) -> None:
        """Finish a restore, once a checkpoint was copied into model and optimizer.

        Optimizers restore their settings with their state. A setting that is configured now as it
        was then keeps the restored value, because some optimizers keep state there; one that the
        config has changed takes its new value, which would otherwise be ignored silently.

        Args:
          step: of the checkpoint.
          settings: the optimizer's settings when the state was saved.
        """
        self.step = step
        if isinstance(self.optimizer, EvaluationWeights):
            self.optimizer.swap_weights()  # checkpoints hold the weights to evaluate
        for group, before, now in zip(
            self.optimizer.param_groups, settings, self.settings, strict=True
        ):
            changed = {name for name in now if name not in before or now[name] != before[name]}
            group.update((name, now[name]) for name in changed)
        if self.average is not None and not self.average.has_history:
            self.average.begin(self.model)  # the run had none so far
        self.precision.push_weights(self.model, self.replica)

    def evaluation_weights(self) -> AbstractContextManager[None]:
        """Give model and replica the weights to evaluate inside the block, if they differ."""
        if not isinstance(self.optimizer, EvaluationWeights):
            return contextlib.nullcontext()
        return self._swapped(self.optimizer.swap_weights)

    def averaged(self) -> AbstractContextManager[None]:
        """Give model and replica the averaged weights inside the block, or those to evaluate."""
        if self.average is None:
            return self.evaluation_weights()
        return self._swapped(partial(self.average.exchange, self.model))

    @contextlib.contextmanager
    def _swapped(self, swap: Callable[[], None]) -> Iterator[None]:
        """Swap the model's weights with others inside the block."""
        swap()
        try:
            self.precision.push_weights(self.model, self.replica)
            yield
        finally:
            swap()
            self.precision.push_weights(self.model, self.replica)

    def decide(self, row: Mapping[str, float], norms: GradientNorms) -> Decision:
        """Return APPLY or SKIP for a step, the same on every process.

        Args:
          row: its loss, gradient norm and learning rate, and whether any token counts.
          norms: of its gradients.

        Raises:
          Diverged: the step is neither applied nor skipped.
        """
        numbers = {name: row[name] for name in ("loss", "grad_norm")}
        is_finite = all(map(math.isfinite, numbers.values()))
        scaling = self.scaling if math.isfinite(row["loss"]) else None  # only gradients overflow
        if scaling is not None and not scaling.accepts(is_finite=is_finite):
            return Decision.SKIP
        decision = Decision.APPLY if is_finite else Decision.ABORT
        if self.divergence is not None:
            decision = self.divergence(is_finite=is_finite)
        if decision in (Decision.ABORT, Decision.ROLL_BACK):
            self.optimizer.zero_grad()
            names = {id(parameter): name for name, parameter in self.model.named_parameters()}
            bad = [names[id(parameter)] for parameter in norms.not_finite()]
            raise Diverged(decision, report(row, bad=bad, num_parameters=len(names)))
        if is_finite and self.guard is not None and row.get("is_counted", True):
            return self.guard(**numbers)
        return decision

    def check_finite(self, row: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
        """Stop on NaN or inf metrics, so that bad checkpoints never evict good ones.

        Of a step that was skipped only `measured` counts, which is of the weights that stay.

        Raises:
          Diverged: some metric is not finite.
        """
        numbers = measured if row.get("skipped") else {**row, **measured}
        bad = [
            f"{name} is {value}"
            for name, value in numbers.items()
            if isinstance(value, float) and not math.isfinite(value)
        ]
        if bad:
            raise Diverged(self._without_skip(), f"{', '.join(bad)}.")

    def check_weights(self) -> None:
        """Stop on weights from which training cannot continue, before they are saved.

        Loss and gradients of the step were finite; what the optimizer made of them shows only
        when the weights are read, which may be after the last good checkpoint was evicted.

        Raises:
          Diverged: some parameter is not finite.
        """
        named = dict(self.model.named_parameters())
        finite = norms_of([*named.values()]).isfinite().tolist()
        if bad := [name for name, is_finite in zip(named, finite, strict=True) if not is_finite]:
            raise Diverged(
                self._without_skip(),
                f"after it {len(bad)} of {len(named)} parameters are NaN, infinite or too large, "
                f"first {bad[0]}.",
            )

    def _without_skip(self) -> Decision:
        """Return what to do about bad weights, which no skipped step can repair."""
        if isinstance(self.divergence, RollBack):
            return self.divergence(is_finite=False)
        return Decision.ABORT


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def progress(data: TrainingStream, state: TrainState) -> dict[str, Any]:
    """Return what a checkpoint holds of a run besides tensors."""
    return {
        "data": data.checksum,
        "full_batches": data.full_batches(state.step),
        "shift": state.shift,
        "stages": [list(stage) for stage in data.stages_begun(state.step + state.shift)],
        "settings": state.settings,
    }


def check_text(saved: Mapping[str, Any], data: TrainingStream, *, path: Path) -> None:
    """Raise RunError if the run in `path` was trained on another text than `data`."""
    if saved["data"] != data.checksum:
        raise RunError(
            f"the text of {path}, or how it is packed, has changed since the run began: restore "
            "the old one, or start a new run."
        )


def check_progress(
    saved: Mapping[str, Any],
    data: TrainingStream,
    *,
    step: int,
    shift: int | None,
    num_steps: int,
    path: Path,
) -> None:
    """Check that a run reached `step` as this config would have, and has steps left.

    Args:
      saved: what `progress` returned for the checkpoint.
      data: the training stream; its text need not be there.
      step: of the checkpoint.
      shift: how many batches the data was ahead of the step count; None if unknown.
      num_steps: of the run, by this config.
      path: the run directory.

    Raises:
      RunError: the run read its text in another way, or is past its end.
    """
    batches = data.full_batches(step)
    if saved["full_batches"] != batches:
        raise RunError(
            f"{path} has read {saved['full_batches']:g} full batches in {step} steps, which by "
            f"this config would be {batches:g}: its batch size grew in another way. Let it grow "
            "over the same number of steps, given as a count and not as a fraction of the run."
        )
    if shift is not None:
        begun = [BegunStage(*stage) for stage in saved["stages"]]
        for old, new in itertools.zip_longest(begun, data.stages_begun(step + shift)):
            if old != new:
                raise RunError(
                    f"{path} has read its texts in other proportions: its mixture had "
                    f"{f'a stage from {old} on' if old else 'no further stage'}, and by this "
                    f"config has {f'one from {new} on' if new else 'none there'}. Keep the stages "
                    "that have begun as they were, starting at a step: those that start at a "
                    "fraction of the run move with num_steps."
                )
    if step > num_steps:
        raise RunError(
            f"{path} has done {step} steps already, and num_steps={num_steps}: increase it, or "
            "choose an earlier --resume_step."
        )

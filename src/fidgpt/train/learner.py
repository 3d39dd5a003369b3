"""The state that training moves: a model, its computing replica and an optimizer."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from fidgpt.data import count_learned
from fidgpt.model.language_model import LanguageModel
from fidgpt.model.reports import collecting
from fidgpt.optim.schedules import Schedule
from fidgpt.parallel import DataParallel
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.objective import NextToken
from fidgpt.train.precision import Precision
from fidgpt.train.run import RunError
from fidgpt.train.step_reports import StepReports

Groups = Callable[[nn.Module], list[dict[str, Any]]]


class Learner:
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

    Attributes:
      settings: what each parameter group was configured with, as far as it is plain values.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        optimizer: Callable[..., Optimizer],
        groups: Groups,
        schedule: Schedule,
        loss: CrossEntropy,
        precision: Precision,
        parallel: DataParallel,
        micro_batch_size: int | None,
        max_grad_norm: float | None,
    ) -> None:
        self.model = model
        self.replica = precision.replica(model)
        self.optimizer = _made(optimizer, groups(model))
        self.settings = [_settings(group) for group in self.optimizer.param_groups]
        self._module = parallel.place(NextToken(self.replica, loss))
        self._peak_rates = [peak_rate(group) for group in self.optimizer.param_groups]
        self._schedule = schedule
        self._precision = precision
        self._parallel = parallel
        self._micro_batch_size = micro_batch_size
        self._max_grad_norm = max_grad_norm

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
        self._precision.push_weights(self.model, self.replica)

    def update(self, batch: Int64[Tensor, "rows window"], *, step: int) -> dict[str, Any]:
        """One optimizer step on this process's rows.

        Returns `loss` (the mean over all processes, before the step, without what parts of the
        model add to it), `grad_norm`, `learning_rate` (of the first group), and what parts report.
        """
        reports = self._backward(batch)
        self._precision.pull_gradients(self.model, self.replica)
        norm = nn.utils.clip_grad_norm_(
            self.model.parameters(),
            float("inf") if self._max_grad_norm is None else self._max_grad_norm,
        )
        multiplier = self._schedule(step)
        for group, rate in zip(self.optimizer.param_groups, self._peak_rates, strict=True):
            group["lr"] = rate * multiplier
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._precision.push_weights(self.model, self.replica)
        rate = self.optimizer.param_groups[0]["lr"]
        row = reports.settle(self._parallel)
        return {"loss": row["loss"], "grad_norm": norm.item(), "learning_rate": float(rate)} | row

    def _backward(self, batch: Int64[Tensor, "rows window"]) -> StepReports:
        """Adds up the gradients of all micro-batches; returns what was reported on the way."""
        step = StepReports()
        parts = batch.split(self._micro_batch_size or len(batch))
        learned = [count_learned(rows) for rows in parts]
        # Each token weighs alike, whichever process and micro-batch it is in.
        total = torch.tensor(sum(learned), dtype=torch.float64, device=batch.device)
        even_share = self._parallel.mean(total).item()
        for number, (rows, count) in enumerate(zip(parts, learned, strict=True), start=1):
            last = number == len(parts)
            alone = contextlib.nullcontext() if last else self._parallel.accumulating(self._module)
            share = count / max(even_share, 1.0)
            with alone:
                with collecting() as reports:
                    loss = self._module(rows)
                (loss * share).backward()
            step.add(reports, share=share)
        return step


def _made(optimizer: Callable[..., Optimizer], groups: list[dict[str, Any]]) -> Optimizer:
    """The optimizer; what it refuses is a mistake in the config, found as late as the model is."""
    try:
        return optimizer(groups)
    except (TypeError, ValueError) as error:
        raise RunError(f"the optimizer refuses its arguments: {error}") from error


def peak_rate(group: dict[str, Any]) -> float:
    """The learning rate of a group, which may say how it relates to that of the others."""
    return group["lr"] * group.get("lr_scale", 1.0)


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in group.items() if name != "params"}
    return {name: value for name, value in plain.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)

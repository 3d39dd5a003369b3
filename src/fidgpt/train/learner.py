"""The state that training moves: a model, its computing replica and an optimizer."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from fidgpt.model.language_model import LanguageModel
from fidgpt.optim.schedules import Schedule
from fidgpt.parallel import DataParallel
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.objective import NextToken
from fidgpt.train.precision import Precision
from fidgpt.train.run import RunError

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
        self._peak_rates = [group["lr"] for group in self.optimizer.param_groups]
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

    def update(self, batch: Int64[Tensor, "rows window"], *, step: int) -> dict[str, float]:
        """One optimizer step on this process's rows.

        Returns `loss` (the mean over all processes, before the step), `grad_norm` and
        `learning_rate` (of the first group).
        """
        loss = self._parallel.mean(self._backward(batch))
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
        return {"loss": loss.item(), "grad_norm": norm.item(), "learning_rate": float(rate)}

    def _backward(self, batch: Int64[Tensor, "rows window"]) -> Tensor:
        """Adds up the gradients of all micro-batches; returns the mean loss of the rows."""
        total = torch.zeros((), device=batch.device)
        parts = batch.split(self._micro_batch_size or len(batch))
        for number, rows in enumerate(parts, start=1):
            last = number == len(parts)
            alone = contextlib.nullcontext() if last else self._parallel.accumulating(self._module)
            with alone:
                loss = self._module(rows) * (len(rows) / len(batch))
                loss.backward()
            total += loss.detach()
        return total


def _made(optimizer: Callable[..., Optimizer], groups: list[dict[str, Any]]) -> Optimizer:
    """The optimizer; what it refuses is a mistake in the config, found as late as the model is."""
    try:
        return optimizer(groups)
    except (TypeError, ValueError) as error:
        raise RunError(f"the optimizer refuses its arguments: {error}") from error


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in group.items() if name != "params"}
    return {name: value for name, value in plain.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)

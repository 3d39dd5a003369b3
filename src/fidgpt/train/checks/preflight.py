"""Checks of a run's custom components before its first step, for what would silently ruin it.

Components of fidgpt and of torch are tested by their own suites and cost nothing here. Modules are
tried on copies, so that no number of the run changes.
"""

import copy
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from fidgpt import cost
from fidgpt.data import Batch, TrainingStream
from fidgpt.data.streams import rows_of_rank
from fidgpt.train.checks.module_trials import model_errors
from fidgpt.train.custom import custom_class, custom_part, describe, failure
from fidgpt.train.estimates.recipe import Recipe, trainable_copy
from fidgpt.train.evaluation import Evaluator
from fidgpt.train.observers import Observer
from fidgpt.train.run_directory import RunError
from fidgpt.train.trackers.trackers import Tracker

__all__ = ["ComponentError"]


class ComponentError(RunError):
    """A custom component breaks what its interface promises; the message names it and the remedy.

    Each line gives the path in the model or the run, the class, and its file and line.
    """


@runtime_checkable
class Components(Recipe, Protocol):
    """What is checked; see the attributes of `Trainer`."""

    trackers: Sequence[Tracker]
    observers: Sequence[Observer]


def check_components(run: Components) -> None:
    """Check everything that needs no data; warn of what may be meant.

    Raises:
      ComponentError: some component breaks a promise; all of them are listed.
    """
    errors = [*_interface_errors(run), *_group_errors(run)]
    with torch.random.fork_rng(devices=[]):
        errors += [*model_errors(run), *_step_errors(run)]
    _raise_all(errors)


def check_stream(run: Components, *, prepared: bool = True) -> None:
    """Check the first batch of a custom stream.

    Args:
      run: the run.
      prepared: whether the stream is; if not, one that fails without it is left unchecked.

    Raises:
      ComponentError: the batch is not what the run needs.
    """
    if (custom := custom_part(run.stream)) is None:
        return
    try:
        errors = [*_stream_errors(run, run.stream)]
    except Exception:
        if prepared:
            raise
        return
    where = describe("data", run.stream, custom)
    _raise_all([f"{where} {text}" for text in errors])


def _raise_all(errors: Sequence[str]) -> None:
    if errors:
        raise ComponentError("\n".join(dict.fromkeys(errors)))


def _interface_errors(run: Components) -> Iterator[str]:
    """Yield trackers, observers and evaluators that lack methods."""
    components: list[tuple[str, object, type]] = [
        *((f"trackers[{i}]", tracker, Tracker) for i, tracker in enumerate(run.trackers)),
        *((f"observers[{i}]", observer, Observer) for i, observer in enumerate(run.observers)),
        *((f"evaluators[{name!r}]", each, Evaluator) for name, each in run.evaluators.items()),
    ]
    for path, component, interface in components:
        if (custom := custom_class(type(component))) is None:
            continue
        methods = [name for name, method in vars(interface).items() if inspect.isfunction(method)]
        if missing := [name for name in methods if not hasattr(component, name)]:
            where = describe(path, component, custom)
            yield f"{where} is not a {interface.__name__}: it has no {' and no '.join(missing)}."


def _group_errors(run: Components) -> Iterator[str]:
    """Yield the trained parameters that custom groups leave out, or have twice."""
    if (custom := custom_part(run.groups)) is None:
        return
    model = trainable_copy(run.model, run.trainable)
    listed = Counter(id(each) for group in run.groups(model) for each in group["params"])
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    wrong = [name for name, parameter in trained.items() if listed[id(parameter)] != 1]
    if wrong:
        where = describe("groups", run.groups, custom)
        count = listed[id(trained[wrong[0]])]
        yield (
            f"{where}: {len(wrong)} trained parameters must be listed exactly once; {wrong[0]} is "
            f"listed {count} times. Freeze what should not be trained."
        )


def _step_errors(run: Components) -> Iterator[str]:
    """Yield what is wrong with the loss of a custom step, tried without memory or on zeros."""
    if (custom := custom_class(type(run.step))) is None:
        return
    where, step = describe("step", run.step, custom), copy.copy(run.step)
    width = step.sequences_per_row * (run.seq_len + 1)
    models = cost.rehearsed(
        [run.model, *step.others()], num_tokens=width, device=torch.device("cpu")
    )
    model, *others = map(run.precision.replica, models)
    tokens = torch.zeros(1, width, dtype=torch.int64, device=next(model.parameters()).device)
    try:
        step.rehearse(others)
        loss: Any = step.objective(model, run.loss).train()(tokens)
    except Exception as error:  # whatever goes wrong in a user's step
        if not (tokens.is_meta and "meta" in str(error)):  # else it needs the values of tensors
            yield f"{where} cannot compute a loss of tokens {list(tokens.shape)}: {failure(error)}"
        return
    if not isinstance(loss, torch.Tensor) or loss.dim() or not loss.requires_grad:
        what = (
            f"numbers {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        )
        yield f"{where}: its objective returns {what}, and a loss is one number with a gradient."


def _stream_errors(run: Components, stream: TrainingStream) -> Iterator[str]:
    """Yield what is wrong with the first batch of this process."""
    rank, world_size = run.parallel.data_rank, run.parallel.data_size
    batch: Any = stream.batch(0, rank=rank, world_size=world_size)
    if not isinstance(batch, Batch):
        yield (
            f"returns a {type(batch).__name__}: return data.Batch(tokens, counted), token ids of "
            "torch.int64 and which of them count in the loss (None if all do)."
        )
        return
    tokens = batch.tokens
    num_rows = len(rows_of_rank(run.batch_size, rank=rank, world_size=world_size))
    expected = [num_rows, run.seq_len + 1]
    grows = run.batch_growth is not None or run.seq_len_growth is not None
    shape = list(tokens.shape) if grows and tokens.ndim == 2 else expected
    if (kind := f"{tokens.dtype} {list(tokens.shape)}") != f"torch.int64 {shape}":
        yield (
            f"returns a batch of {kind}, and the run needs torch.int64 {expected}: batch_size="
            f"{run.batch_size} over {world_size} process{'es' * (world_size > 1)}, and seq_len + 1 "
            f"= {run.seq_len + 1} tokens, of which the last is only predicted."
        )
        return
    largest = int(tokens.max()) if tokens.numel() else 0
    if largest >= run.vocab_size:
        yield (
            f"returns the token {largest}, and the model has vocab_size={run.vocab_size}: tokens "
            f"are from 0 to {run.vocab_size - 1}."
        )
    first = tokens.clone()
    other = stream.batch(0, rank=(rank + 1) % world_size, world_size=world_size)
    if world_size > 1 and torch.equal(first, other.tokens):
        yield (
            "returns the same rows to two processes: each of them computes its own part of the "
            "batch, by `rank`."
        )
    if not torch.equal(first, stream.batch(0, rank=rank, world_size=world_size).tokens):
        yield (
            "returns two batches for one step: a batch is a function of its step alone, so that a "
            "resumed run goes on with the next one. Derive random numbers from the step."
        )

"""Checks of a run's custom components before its first step, for what would silently ruin it.

Components of fidgpt and of torch are tested by their own suites and cost nothing here. Modules are
tried on copies, so that no number of the run changes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from fidgpt.data import TrainingStream
from fidgpt.data.streams import rows_of_rank
from fidgpt.train.checks.module_trials import custom_class, custom_part, describe, model_errors
from fidgpt.train.estimates.facts import Recipe, trainable_copy
from fidgpt.train.evaluation import Evaluator
from fidgpt.train.gradients import norms_of
from fidgpt.train.run_directory import RunError

__all__ = ["ComponentError"]


class ComponentError(RunError):
    """A custom component breaks what its interface promises; the message names it and the remedy.

    Each line gives the path in the model or the run, the class, and its file and line.
    """


def check_components(run: Recipe) -> None:
    """Check everything that needs no data; warn of what may be meant.

    Raises:
      ComponentError: some component breaks a promise; all of them are listed.
    """
    errors = [*_group_errors(run)]
    with torch.random.fork_rng(devices=[]):
        errors += model_errors(run)
    _raise_all(errors)


def check_stream(run: Recipe) -> None:
    """Check the first batch of a custom stream, which is prepared.

    Raises:
      ComponentError: the batch is not what the run needs.
    """
    if (custom := custom_part(run.stream)) is not None:
        where = describe("data", run.stream, custom)
        _raise_all([f"{where} {text}" for text in _stream_errors(run, run.stream)])


def _raise_all(errors: Sequence[str]) -> None:
    if errors:
        raise ComponentError("\n".join(dict.fromkeys(errors)))


def _group_errors(run: Recipe) -> Iterator[str]:
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


def _stream_errors(run: Recipe, stream: TrainingStream) -> Iterator[str]:
    """Yield the errors of the first batch of this process."""
    rank, world_size = run.parallel.data_rank, run.parallel.data_size
    tokens = stream.batch(0, rank=rank, world_size=world_size).tokens
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


@contextmanager
def left_unchanged(model: nn.Module, evaluator: Evaluator, name: str) -> Iterator[None]:
    """Undo what a custom evaluator does to modes, gradients and `requires_grad` of a model.

    Args:
      model: which trains on after the block.
      evaluator: is called in the block.
      name: of the evaluator in a run.

    Raises:
      RunError: it changed parameters.
    """
    if custom_class(type(evaluator)) is None:
        yield
        return
    parameters, modes = [*model.parameters()], [(m, m.training) for m in model.modules()]
    trained, norms = [parameter.requires_grad for parameter in parameters], norms_of(parameters)
    yield
    for module, mode in modes:
        module.training = mode
    for parameter, is_trained in zip(parameters, trained, strict=True):
        parameter.requires_grad_(is_trained).grad = None
    if not torch.equal(norms_of(parameters), norms):
        raise RunError(
            f"evaluators[{name!r}] changes parameters of the model, which trains on with them: let "
            "it change a copy (copy.deepcopy(model)), or restore what it changed."
        )

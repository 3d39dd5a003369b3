"""What is measured of a run and shown of it: its speed, its weights, and their average."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fidgpt.train.evaluation import Evaluator, evaluating
from fidgpt.train.facts.facts import Facts
from fidgpt.train.learner import Learner
from fidgpt.train.memory import peak_memory
from fidgpt.train.run import RunError
from fidgpt.train.tracking.trackers import Row

if TYPE_CHECKING:
    from fidgpt.train.trainer import Trainer


def evaluate(trainer: "Trainer", learner: Learner, step: int) -> Row:
    """What is due once a step is done: `<name>/...` of the weights, `<name>/averaged/...` too.

    And under `samples` the texts that the model writes, if it is time for some.
    """
    due = {
        name: evaluator
        for name, evaluator in trainer.evaluators.items()
        if evaluator.due(step, num_steps=trainer.num_steps)
    }
    row = _measured(trainer, learner, due)
    if due and learner.average is not None:
        with learner.averaged():
            row |= _measured(trainer, learner, {f"{name}/averaged": due[name] for name in due})
    if trainer.samples is not None and trainer.samples.due(step, num_steps=trainer.num_steps):
        row["samples"] = list(sample_texts(trainer, learner))
    return row


def speed(trainer: "Trainer", facts: Facts, step: int, *, seconds: float) -> Row:
    """How fast a step was, that took so many `seconds`, and what the run is at after it.

    Returns `tokens`, read since the run began; `tokens_per_second`; `utilisation`, the share of the
    devices' peak; and `memory`, the bytes that this process had at most.
    """
    before, after = (
        round(trainer.data.full_batches(steps) * facts.tokens_per_step)
        for steps in (step - 1, step)
    )
    rate = (after - before) / seconds
    return {
        "tokens": after,
        "tokens_per_second": rate,
        "utilisation": rate * facts.flops_per_token / facts.peak_flops,
        "memory": peak_memory(trainer.parallel.device),
    }


def sample_texts(trainer: "Trainer", learner: Learner) -> Iterator[str]:
    """What the model writes, a text for each prompt; by averaged weights if there are.

    On every process, of which each may hold a part of the model; only the main one shows it.

    Raises:
      RunError: the model's logits are no numbers.
    """
    if trainer.samples is None:
        return
    averaged = contextlib.nullcontext() if learner.average is None else learner.averaged()
    with averaged, evaluating(learner.replica):
        texts = trainer.samples.write(
            learner.replica,
            trainer.data.tokenizer,
            context=trainer.seq_len,
            seed=trainer.seed,
        )
        try:
            yield from texts
        except ValueError as error:
            raise RunError(f"no sample can be written: {error}") from error


def _measured(trainer: "Trainer", learner: Learner, evaluators: Mapping[str, Evaluator]) -> Row:
    return {
        f"{name}/{key}": value
        for name, evaluator in evaluators.items()
        for key, value in evaluator(learner.replica, trainer.loss, trainer.parallel).items()
    }

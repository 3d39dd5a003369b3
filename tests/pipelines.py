"""Steps of pipelines on four processes, beside those of one: a script, and what torch does wrong.

`torch.distributed.pipelining` fails in silence where stages are frozen, batches get shorter, older
gradients are there, outputs are not used, or the number format changes (SCALE: found with 2.13).
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fiddle as fdl
import torch
from meshes import base, pipeline, spread
from small_models import whole_weights
from torch import Tensor

from fidgpt import data, train
from fidgpt.parallel import ActionList
from fidgpt.processes import Processes
from fidgpt.processes.ranks import run_ranks
from fidgpt.runs.building import build_trainer
from fidgpt.train.mesh_check import counting

NUM_RANKS, SEQ_LEN, NUM_LAYERS = 4, 24, 8
# The rows of the batches of a run: the first are as many as the micro-batches of the counted step.
SHRINKING = (8, 5, 7)
Fiddler = Callable[[fdl.Config], object]


def trains_last(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is in the last layers."""
    return name.startswith(("blocks.5", "blocks.6", "blocks.7", "unembedding"))


def trains_first_and_last(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is in no layer in the middle."""
    return name.startswith(("embedding", "blocks.0", "blocks.7"))


def frozen(trains: Callable[[str, Tensor], bool]) -> Fiddler:
    """Return the change that freezes what a function does not select."""

    def change(cfg: fdl.Config) -> None:
        cfg.trainable = trains

    return change


def listed(cfg: fdl.Config) -> None:
    """A schedule of one's own: all micro-batches forward and then backward."""
    ranks = [
        " ".join(f"{stage}{kind}{number}" for kind in "FB" for number in range(8))
        for stage in range(NUM_RANKS)
    ]
    cfg.step.schedule = fdl.Config(ActionList, ranks=ranks)


def unchanged(cfg: fdl.Config) -> None:
    """Change nothing."""


class Case:
    """A run on one process, and on a pipeline.

    Args:
      schedule: of the pipeline.
      change: of both.
      own: change of the pipeline alone.
      rows: of each batch.
    """

    def __init__(
        self,
        schedule: str,
        change: Fiddler = unchanged,
        *,
        own: Fiddler = unchanged,
        rows: tuple[int, ...] = SHRINKING,
    ) -> None:
        self.rows = rows
        self.trainers = []
        for changes in ((), (pipeline(schedule, pipeline=NUM_RANKS), own)):
            cfg = base(change, *changes)
            cfg.model.num_layers, cfg.seq_len, cfg.batch_size = NUM_LAYERS, SEQ_LEN, 8
            cfg.micro_batch_size = 1
            trainer = build_trainer(cfg)
            for parameter in trainer.model.parameters():
                vars(parameter)["init"] = spread
            self.trainers.append(trainer)

    def run(self, number: int) -> dict[str, Any]:
        """Take a step with each batch; return rows, weights, and what the last step sent."""
        trainer = self.trainers[number]
        with trainer.parallel:
            trainer.prepare()
            state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
            left: dict[str, Any] = {"rows": []}
            for index, size in enumerate(self.rows):
                with counting(state.replica) as counter, sending() as sent:
                    left["rows"].append(trainer.update(state, batch(index, size)))
                    left |= {"sent": sent, "counts": counter.counts}
            return left | {"weights": whole_weights(state.model)}


def batch(index: int, size: int) -> data.Batch:
    """Rows of which unequal numbers of tokens count in the loss; in one none does."""
    generator = torch.Generator().manual_seed(index)
    tokens = torch.randint(0, 256, (size, SEQ_LEN + 1), generator=generator)
    ends = torch.tensor([[20], [25], [9], [14], [0], [3], [25], [25]])
    return data.Batch(tokens, torch.arange(SEQ_LEN + 1) < ends[:size])


class sending:  # a context, as those of contextlib
    """Context that lists the tensors that this process sends, by receiver and shape."""

    def __enter__(self) -> list[tuple[int, tuple[int, ...]]]:
        self._begin_send = Processes.begin_send
        listed: list[tuple[int, tuple[int, ...]]] = []

        def begin_send(axis: Processes, x: Tensor, rank: int) -> Any:
            listed.append((rank, tuple(x.shape)))
            return self._begin_send(axis, x, rank)

        setattr(Processes, "begin_send", begin_send)  # noqa: B010
        return listed

    def __exit__(self, *_: object) -> None:
        setattr(Processes, "begin_send", self._begin_send)  # noqa: B010


CASES: Mapping[str, Callable[[], Case]] = {
    "1f1b": partial(Case, "1f1b", rows=(8, 8)),
    "shorter batches": partial(Case, "1f1b"),
    "frozen first stages": partial(Case, "zero_bubble_v", frozen(trains_last)),
    "frozen middle": partial(Case, "zero_bubble", frozen(trains_first_and_last)),
    "own list": partial(Case, "1f1b", own=listed, rows=(8, 8)),
}


def main(path: Path) -> None:
    """Leave what every case gives, alone and on each process, in a file."""
    cases = {name: make() for name, make in CASES.items()}

    def results(number: int) -> dict[str, Any]:
        return {name: case.run(number) for name, case in cases.items()}

    alone = run_ranks(1, partial(results, 0), seconds=300)
    torch.save([*alone, *run_ranks(NUM_RANKS, partial(results, 1), seconds=300)], path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

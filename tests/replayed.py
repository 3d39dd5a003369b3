"""Runs of two processes in which a bit flips on one of them: a script, and its cases."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fiddle as fdl
import torch
import torch.distributed as dist
from launches import before_steps
from torch import Tensor

from fidgpt import configs, fiddlers
from fidgpt.processes.ranks import run_ranks
from fidgpt.runs.building import build_trainer
from fidgpt.train import RunDirectory, RunError, StepReplay, TrainStep
from fidgpt.train.state import TrainState
from fidgpt.train.step_metrics import LaunchedStep

EVERY = 2
Change = Callable[[fdl.Config], object]
Fault = Callable[[], AbstractContextManager[object]]


def flip(tensor: Tensor, place: int = 0, *, bit: int = 3) -> None:
    """Flip a bit of an element of a contiguous tensor; a negative one counts from the highest."""
    bit %= 8 * tensor.element_size()
    element = tensor.detach().view(-1)[place : place + 1].view(torch.uint8)
    element[bit // 8] ^= 1 << bit % 8


def local(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def flipped_in_weight(
    step: int, *, bit: int = 3, rank: int = 0, name: str = "norm.weight"
) -> AbstractContextManager[object]:
    """Flip a bit of a weight as a step is computed for the first time."""
    left = [step]

    def harm(run: Any, state: TrainState) -> None:
        if [state.step + 1] == left and run.parallel.rank == rank:
            left.clear()
            flip(local(state.replica.get_parameter(name)), bit=bit)

    return before_steps(harm)


@contextmanager
def flipped_in_gradient(
    step: int, *, bit: int = 3, times: int = 1, rank: int = 0, name: str = "norm.weight"
) -> Iterator[None]:
    """Flip a bit of a gradient when it is there, and the bits after it at further times."""
    replay, bits = StepReplay.__call__, iter(range(bit, bit + times))

    def hurt(parameter: Any) -> None:
        if (own := next(bits, None)) is not None:
            flip(local(parameter.grad), bit=own)

    def harmed(self: StepReplay, update: Any, state: TrainState, parallel: Any) -> dict[str, Any]:
        if (state.step + 1, parallel.rank) != (step, rank):
            return replay(self, update, state, parallel)
        handle = state.replica.get_parameter(name).register_post_accumulate_grad_hook(hurt)
        try:
            return replay(self, update, state, parallel)
        finally:
            handle.remove()

    with patch.object(StepReplay, "__call__", harmed):
        yield


def flipped_between(step: int, *, rank: int, name: str = "norm.weight") -> Any:
    """Flip a bit of a weight after a step."""
    launch = TrainStep.launch

    def harmed(
        self: TrainStep, run: Any, state: TrainState, *batch: Any, **options: Any
    ) -> LaunchedStep:
        launched = launch(self, run, state, *batch, **options)
        if state.step == step and run.parallel.rank == rank:
            flip(local(state.model.get_parameter(name)))
        return launched

    return patch.object(TrainStep, "launch", harmed)


def everything(cfg: fdl.Config) -> None:
    fiddlers.use_fsdp(cfg)
    fiddlers.use_ema(cfg, beta=0.5)
    fiddlers.use_muon(cfg)
    cfg.batch_size, cfg.micro_batch_size, cfg.model.dropout = 4, 1, 0.1


CASES: dict[str, Change] = {
    "plain": lambda cfg: None,
    "weight": lambda cfg: None,
    "sharded": everything,
    "mesh": partial(fiddlers.use_mesh, tensor=2),
}
_TABLE = "blocks.0.mlp.up.weight"
# What is found on process 1, by the fault, as words of the error.
FAULTS: dict[str, dict[str, tuple[str, ...]]] = {
    "plain": {
        "gradient": ("gradients differ on process 1 ", _TABLE, "equals the second"),
        "memory": ("before step 4,", f"bits: {_TABLE} on processes 0 ", "--resume_step"),
    },
    "weight": {
        "weight": ("step 4 was", "weights changed while it was computed on process 1", _TABLE)
    },
    "sharded": {"gradient": ("gradients differ on process 1 ", _TABLE)},
    "mesh": {"gradient": ("gradients differ on process 1 ", _TABLE)},
}
_HARM: dict[str, Fault] = {
    "weight": partial(flipped_in_weight, 4, rank=1, name=_TABLE),
    "gradient": partial(flipped_in_gradient, 4, rank=1, name=_TABLE),
    "memory": partial(flipped_between, 3, rank=1, name=_TABLE),
}


def trained(change: Change, *, every: int | None) -> list[dict[str, Any]]:
    """Return the rows of four steps, with a replay of every so many."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    change(cfg)
    if every is not None:
        fiddlers.use_step_replay(cfg, every=every)
    trainer = build_trainer(cfg)
    with trainer.parallel as parallel:
        trainer.stream.prepare(show_progress=False)
        state = trainer.setup(RunDirectory(Path("unused"), texts={}))
        rows = []
        for step in range(1, 5):
            torch.manual_seed(step)
            batch = trainer.stream.batch(
                step - 1, rank=parallel.data_rank, world_size=parallel.data_size
            )
            update = partial(trainer.update, state, batch)
            if trainer.replay is not None and trainer.replay.due(step):
                update = partial(trainer.replay, update, state, parallel)
            rows.append(update())
        return rows


def found_in(case: str) -> dict[str, Any]:
    """Return rows with and without replay, and the errors, of this process."""
    change = CASES[case]
    left: dict[str, Any] = {
        "rows": trained(change, every=None),
        "replayed": trained(change, every=EVERY),
    }
    for fault in FAULTS[case]:
        try:
            with _HARM[fault]():
                trained(change, every=EVERY)
            left[fault] = "nothing was found"
        except RunError as error:
            left[fault] = str(error)
        dist.barrier()
    return left


def main(folder: Path, *cases: str) -> None:
    """Leaves what each process found, by case, in one file."""
    results = {case: run_ranks(2, partial(found_in, case)) for case in cases}
    torch.save(results, folder / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

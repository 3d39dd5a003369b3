"""Run by each of two processes: `python two_processes.py TASK FOLDER ...` saves what it returns."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from small_models import whole_weights

from fidgpt import configs, fiddlers, parallel, train
from fidgpt.data import Batch
from fidgpt.model import Transformer
from fidgpt.runs.building import build_trainer
from fidgpt.train.state import TrainState

HARMFUL = 4  # the number of a batch
LATE = 0.1  # seconds that the second process takes longer for a batch


def plain(path: Path) -> dict[str, Any]:
    """Trains `debug` into `path`/two; each rank keeps the tokens that it read."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    cfg.trackers = cfg.trackers[1:]
    trainer = build_trainer(cfg)
    seen = []
    read = trainer.stream.batch

    def remember(step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        time.sleep(LATE * rank)
        seen.append(read(step, rank=rank, world_size=world_size))
        return seen[-1]

    trainer.stream.batch = remember
    with trainer.parallel:  # one group for both: a second may find the addresses of the first
        refused = _refusal_of_disagreement(trainer, path)
        trainer.train(train.RunDirectory(path / "two", texts={}))
    model = trainer.model
    assert isinstance(model, Transformer)
    return {
        # Checks read the first batches.
        "tokens": torch.stack([batch.tokens for batch in seen[-cfg.num_steps :]]),
        "whole": torch.stack([read(step).tokens for step in range(cfg.num_steps)]),
        "table": model.embedding.weight.detach(),
        "refused": refused,
        "tied": model.embedding.weight is model.unembedding.weight,
    }


def _refusal_of_disagreement(trainer: train.Trainer, path: Path) -> str:
    """Return the error of a rank whose config differs from another one's."""
    identity = {"num_steps": "5", "seed": os.environ["RANK"], "vocab_size": os.environ["RANK"]}
    try:
        trainer.train(train.RunDirectory(path / "other", texts={}, identity=identity))
    except parallel.ParallelError as error:
        return str(error)
    return "it trained"


def harmed(path: Path, share: str) -> dict[str, Any]:
    """Trains into `path` by parts of a step, on two of which one does harm."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    if share != "use_data_parallel":
        getattr(fiddlers, share)(cfg)
    fiddlers.use_roll_back(cfg)
    fiddlers.use_skip_step(cfg)
    fiddlers.use_ema(cfg, beta=0.5)
    fiddlers.use_step_meters(cfg, every=3)
    cfg.trackers, cfg.samples = cfg.trackers[1:], None
    cfg.num_steps, cfg.checkpoints.every = 7, 2
    made = build_trainer(cfg)
    launch, setup = made.step.launch, made.setup
    kept: list[TrainState] = []

    def harming(run: Any, state: TrainState, *batch: Any, **options: Any) -> Any:
        if state.step + state.shift == HARMFUL and made.parallel.rank == 1:
            with torch.no_grad():  # of this process's own weights
                weight = [*state.model.parameters()][-1]
                getattr(weight, "to_local", lambda: weight)().fill_(torch.nan)
        return launch(run, state, *batch, **options)

    def keep(*arguments: Any, **options: Any) -> TrainState:
        kept.append(setup(*arguments, **options))
        return kept[-1]

    made.step.launch = harming
    made.setup = keep
    with made.parallel:
        made.train(train.RunDirectory(path / "run", texts={}))
        (state,) = kept
        left = whole_weights(state.model)
        with state.averaged():
            average = whole_weights(state.model)
    guards = {name: part.state_dict() for name, part in state.stateful.items() if name != "average"}
    return {"model": left, "average": average, "guards": guards}


if __name__ == "__main__":
    task, folder, *arguments = sys.argv[1:]
    tasks = {each.__name__: each for each in (plain, harmed)}
    found = tasks[task](Path(folder), *arguments)
    torch.save(found, Path(folder) / f"rank{os.environ['RANK']}.pt")

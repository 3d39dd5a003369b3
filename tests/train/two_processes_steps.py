"""Run by each process: trains on two, one of which does harm, by parts of a step."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fidgpt import fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.train import RunDirectory
from fidgpt.train.state import TrainState

HARMFUL = 4  # the number of a batch


def main(path: Path, share: str) -> None:
    """Trains into `path`; each rank leaves what it has in the end, whole."""
    cfg = debug()
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
    read, setup = made.data.batch, made.setup
    kept: list[TrainState] = []

    def batch(step: int, **others: int) -> Tensor:
        found = read(step, **others)
        if step == HARMFUL and others.get("rank") == 1:
            spoil(kept[0].model)
        return found

    def keep(*arguments: Any, **options: Any) -> TrainState:
        kept.append(setup(*arguments, **options))
        return kept[-1]

    made.data.batch = batch
    made.setup = keep
    with made.parallel:
        made.train(RunDirectory(path / "run", texts={}))
        (state,) = kept
        left = {name: whole(p) for name, p in state.model.named_parameters()}
        with state.averaged():
            average = {name: whole(p) for name, p in state.model.named_parameters()}
        guards = {
            name: part.state_dict() for name, part in state.stateful.items() if name != "average"
        }
        saved = {"model": left, "average": average, "guards": guards}
        torch.save(saved, path / f"rank{os.environ.get('RANK', '0')}.pt")


def spoil(model: torch.nn.Module) -> None:
    """Makes a number of this process's own weights none."""
    with torch.no_grad():
        weight = [*model.parameters()][-1]
        getattr(weight, "to_local", lambda: weight)().fill_(torch.nan)


def whole(tensor: Tensor) -> Tensor:
    full = getattr(tensor, "full_tensor", None)
    return (tensor if full is None else full()).detach().clone()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

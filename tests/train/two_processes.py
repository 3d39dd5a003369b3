"""Started by torchrun: trains `debug` on two processes and leaves what the test compares."""

import os
import sys
from pathlib import Path

import torch

from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.fiddlers import use_float32
from fidgpt.model import Transformer
from fidgpt.parallel import ParallelError
from fidgpt.train import RunDirectory, Trainer


def main(path: Path) -> None:
    """Trains into `path`/two; each rank keeps the tokens that it read."""
    cfg = debug()
    use_float32(cfg)
    cfg.trackers = cfg.trackers[1:]
    trainer = build_trainer(cfg)
    seen = []
    read = trainer.data.batch

    def remember(step: int, *, rank: int = 0, world_size: int = 1) -> torch.Tensor:
        batch = read(step, rank=rank, world_size=world_size)
        seen.append(batch)
        return batch

    trainer.data.batch = remember
    with trainer.parallel:  # one group for both: a second may find the addresses of the first
        refused = _refusal_of_disagreement(trainer, path)
        trainer.train(RunDirectory(path / "two", texts={}))
    model = trainer.model
    assert isinstance(model, Transformer)
    left = {
        "tokens": torch.stack(seen),
        "whole": torch.stack([read(step) for step in range(cfg.num_steps)]),
        "table": model.embedding.weight.detach(),
        "refused": refused,
        "tied": model.embedding.weight is model.unembedding.weight,
    }
    torch.save(left, path / f"rank{os.environ['RANK']}.pt")


def _refusal_of_disagreement(trainer: Trainer, path: Path) -> str:
    """Return the error of a rank whose config differs from another one's."""
    identity = {"num_steps": "5", "seed": os.environ["RANK"], "vocab_size": os.environ["RANK"]}
    try:
        trainer.train(RunDirectory(path / "other", texts={}, identity=identity))
    except ParallelError as error:
        return str(error)
    return "it trained"


if __name__ == "__main__":
    main(Path(sys.argv[1]))

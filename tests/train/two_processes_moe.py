"""Run by each process: trains the config that lies in `path`/one on two processes."""

import os
import sys
from pathlib import Path

import torch

from fidgpt.compose.runs import build_trainer
from fidgpt.graph import load
from fidgpt.model import Transformer
from fidgpt.model.moe import MoE
from fidgpt.train import RunDirectory


def main(path: Path) -> None:
    """Trains into `path`/two; each rank leaves the bias that its first router has in the end."""
    trainer = build_trainer(load((path / "one" / "config.json").read_text()))
    trainer.train(RunDirectory(path / "two", texts={}))
    assert isinstance(trainer.model, Transformer)
    moe = trainer.model.get_submodule("blocks.0.mlp")
    assert isinstance(moe, MoE) and moe.router.selection_bias is not None
    torch.save(moe.router.selection_bias.bias, path / f"bias{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

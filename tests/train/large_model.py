"""Started as a process of its own, whose memory goes with it: a few steps of the README's model."""

import sys
from pathlib import Path

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.compose.runs import build_trainer
from fidgpt.train import Checkpoints, RunDirectory

README = ["config:base", "fiddler:make_large", "set:model.hidden_dim=1024"]
SHORT = ["set:batch_size=1", "set:seq_len=16", "set:num_steps=2", "set:samples=None"]


class Nothing(Checkpoints):
    """Saves nothing: this model's checkpoint is five gigabytes."""

    def planned(self, step: int, *, num_steps: int) -> list[str]:
        """Never."""
        return []


if __name__ == "__main__":
    cfg = compose([*README, *SHORT], own_catalogue())
    cfg.trackers, cfg.evaluators = cfg.trackers[1:], {}
    trainer = build_trainer(cfg)
    trainer.checkpoints = Nothing(every=None, keep_last=1)
    print(sum(parameter.numel() for parameter in trainer.model.parameters()))
    trainer.train(RunDirectory(Path(sys.argv[1]), texts={}))

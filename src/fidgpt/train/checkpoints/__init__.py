"""Checkpoints: their policies, how they are written and restored, and beginning from one."""

from fidgpt.train.checkpoints.checkpoints import Checkpoints, has_checkpoints, verify
from fidgpt.train.checkpoints.contents import check_fit
from fidgpt.train.checkpoints.initial import initial_weights
from fidgpt.train.checkpoints.manifest import CheckpointError, newest_good
from fidgpt.train.checkpoints.mirror import Mirror
from fidgpt.train.checkpoints.retention import EveryMinutes, KeepBest, KeepEvery
from fidgpt.train.checkpoints.tensors import WriteAtOnce, WriteBeside, Writer

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "EveryMinutes",
    "KeepBest",
    "KeepEvery",
    "Mirror",
    "WriteAtOnce",
    "WriteBeside",
    "Writer",
    "check_fit",
    "has_checkpoints",
    "initial_weights",
    "newest_good",
    "verify",
]

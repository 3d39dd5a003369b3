"""Checkpoints: their policies, how they are written and restored, and weights from other runs."""

from fidgpt.train.checkpoints.checkpoints import Checkpoints, check_fit
from fidgpt.train.checkpoints.manifest import CheckpointError, newest_good

__all__ = ["CheckpointError", "Checkpoints", "check_fit", "newest_good"]

"""The trainer and its parts: loop, checkpoints, evaluation, metrics, trackers."""

from fidgpt.train.checkpoint import CheckpointError, Checkpoints
from fidgpt.train.console import Console
from fidgpt.train.evaluation import Evaluator, Validation
from fidgpt.train.facts import Facts
from fidgpt.train.loss import CrossEntropy, ZLoss
from fidgpt.train.machine import machine_name
from fidgpt.train.precision import BFloat16, Float32, Precision, native_precision
from fidgpt.train.rng import derive_seed
from fidgpt.train.run import Outcome, RunDirectory, RunError
from fidgpt.train.samples import Samples, continuations, document_begin
from fidgpt.train.trackers import JSONLines, Tracker
from fidgpt.train.trainer import Trainer

__all__ = [
    "BFloat16",
    "CheckpointError",
    "Checkpoints",
    "Console",
    "CrossEntropy",
    "Evaluator",
    "Facts",
    "Float32",
    "JSONLines",
    "Outcome",
    "Precision",
    "RunDirectory",
    "RunError",
    "Samples",
    "Tracker",
    "Trainer",
    "Validation",
    "ZLoss",
    "continuations",
    "derive_seed",
    "document_begin",
    "machine_name",
    "native_precision",
]

"""The trainer and its parts: loop, checkpoints, evaluation, metrics, trackers."""

from fidgpt.train.averaging import Average, Ema, EmaDecaySqrt
from fidgpt.train.checkpoints import (
    CheckpointError,
    Checkpoints,
    EveryMinutes,
    KeepBest,
    KeepEvery,
    Mirror,
    WriteAtOnce,
    WriteBeside,
    initial_weights,
)
from fidgpt.train.device import derive_seed, machine_name
from fidgpt.train.divergence import (
    Decision,
    Divergence,
    Guard,
    RollBack,
    SkipDiverged,
    SkipOutliers,
)
from fidgpt.train.evaluation import DomainValidation, Evaluator, Validation
from fidgpt.train.facts import Facts
from fidgpt.train.harness import TaskEvaluation
from fidgpt.train.loss import CrossEntropy, FusedCrossEntropy, LossTerm, SmoothedLabels, ZLoss
from fidgpt.train.meters import StepMeters
from fidgpt.train.observers import Determinism, MemorySnapshot, Observer, Profiler, Watchdog
from fidgpt.train.precision import BFloat16, Float16, Float32, Precision, native_precision
from fidgpt.train.run_directory import Outcome, RunDirectory, RunError
from fidgpt.train.samples import Samples, continuations, document_begin, texts_after
from fidgpt.train.state import Stateful
from fidgpt.train.step import ClipByValue, GradientTransform
from fidgpt.train.trackers.background import BackgroundTracker
from fidgpt.train.trackers.console import Console
from fidgpt.train.trackers.services import MLflow, TensorBoard, Trackio, WandB
from fidgpt.train.trackers.trackers import JSONLines, Tracker
from fidgpt.train.trainer import Trainer

__all__ = [
    "Average",
    "BFloat16",
    "BackgroundTracker",
    "CheckpointError",
    "Checkpoints",
    "ClipByValue",
    "Console",
    "CrossEntropy",
    "Decision",
    "Determinism",
    "Divergence",
    "DomainValidation",
    "Ema",
    "EmaDecaySqrt",
    "Evaluator",
    "EveryMinutes",
    "Facts",
    "Float16",
    "Float32",
    "FusedCrossEntropy",
    "GradientTransform",
    "Guard",
    "JSONLines",
    "KeepBest",
    "KeepEvery",
    "LossTerm",
    "MLflow",
    "MemorySnapshot",
    "Mirror",
    "Observer",
    "Outcome",
    "Precision",
    "Profiler",
    "RollBack",
    "RunDirectory",
    "RunError",
    "Samples",
    "SkipDiverged",
    "SkipOutliers",
    "SmoothedLabels",
    "Stateful",
    "StepMeters",
    "TaskEvaluation",
    "TensorBoard",
    "Tracker",
    "Trackio",
    "Trainer",
    "Validation",
    "WandB",
    "Watchdog",
    "WriteAtOnce",
    "WriteBeside",
    "ZLoss",
    "continuations",
    "derive_seed",
    "document_begin",
    "initial_weights",
    "machine_name",
    "native_precision",
    "texts_after",
]

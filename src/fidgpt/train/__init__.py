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
from fidgpt.train.console import Console
from fidgpt.train.divergence import Divergence, RollBack, SkipDiverged
from fidgpt.train.evaluation import DomainValidation, Evaluator, TaskEvaluation, Validation
from fidgpt.train.facts import Facts
from fidgpt.train.fused_loss import FusedCrossEntropy
from fidgpt.train.gradients import ClipByValue, GradientTransform
from fidgpt.train.guards import Guard, SkipOutliers, Verdict
from fidgpt.train.loss import CrossEntropy
from fidgpt.train.loss_terms import LossTerm, SmoothedLabels, ZLoss
from fidgpt.train.machine import machine_name
from fidgpt.train.observers import Observer
from fidgpt.train.precision import BFloat16, Float16, Float32, Precision, native_precision
from fidgpt.train.profiling import MemorySnapshot, Profiler
from fidgpt.train.rng import derive_seed
from fidgpt.train.run import Outcome, RunDirectory, RunError
from fidgpt.train.samples import Samples, continuations, document_begin, texts_after
from fidgpt.train.stateful import Stateful
from fidgpt.train.step_meters import StepMeters
from fidgpt.train.trackers import JSONLines, Tracker
from fidgpt.train.tracking import Aside, MLflow, TensorBoard, Trackio, WandB
from fidgpt.train.trainer import Trainer
from fidgpt.train.watchdog import Watchdog

__all__ = [
    "Aside",
    "Average",
    "BFloat16",
    "CheckpointError",
    "Checkpoints",
    "ClipByValue",
    "Console",
    "CrossEntropy",
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
    "Verdict",
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

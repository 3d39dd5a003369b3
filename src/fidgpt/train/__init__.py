"""The trainer and its parts: loop, checkpoints, evaluation, metrics, trackers."""

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
from fidgpt.train.evaluation import DomainValidation, Evaluator, TaskEvaluation, Validation
from fidgpt.train.facts.facts import Facts
from fidgpt.train.losses.fused_loss import FusedCrossEntropy
from fidgpt.train.losses.loss import CrossEntropy
from fidgpt.train.losses.loss_terms import LossTerm, SmoothedLabels, ZLoss
from fidgpt.train.machine import machine_name
from fidgpt.train.observers.determinism import Determinism
from fidgpt.train.observers.observers import Observer
from fidgpt.train.observers.profiling import MemorySnapshot, Profiler
from fidgpt.train.observers.watchdog import Watchdog
from fidgpt.train.precision import BFloat16, Float16, Float32, Precision, native_precision
from fidgpt.train.rng import derive_seed
from fidgpt.train.run import Outcome, RunDirectory, RunError
from fidgpt.train.samples import Samples, continuations, document_begin, texts_after
from fidgpt.train.stateful import Stateful
from fidgpt.train.steps.averaging import Average, Ema, EmaDecaySqrt
from fidgpt.train.steps.divergence import Divergence, RollBack, SkipDiverged
from fidgpt.train.steps.gradients import ClipByValue, GradientTransform
from fidgpt.train.steps.guards import Guard, SkipOutliers, Verdict
from fidgpt.train.steps.step_meters import StepMeters
from fidgpt.train.tracking import Aside, MLflow, TensorBoard, Trackio, WandB
from fidgpt.train.tracking.console import Console
from fidgpt.train.tracking.trackers import JSONLines, Tracker
from fidgpt.train.trainer import Trainer

__all__ = [
    "Aside",
    "Average",
    "BFloat16",
    "CheckpointError",
    "Checkpoints",
    "ClipByValue",
    "Console",
    "CrossEntropy",
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

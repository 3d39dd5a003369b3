"""The trainer and its parts: loop, checkpoints, evaluation, metrics, trackers."""

from fidgpt.train.averaging import *
from fidgpt.train.checkpoints.checkpoints import *
from fidgpt.train.checkpoints.initial import *
from fidgpt.train.checkpoints.manifest import *
from fidgpt.train.checkpoints.memory import *
from fidgpt.train.checkpoints.mirror import *
from fidgpt.train.checkpoints.writing import *
from fidgpt.train.checks.preflight import *
from fidgpt.train.device import *
from fidgpt.train.divergence import *
from fidgpt.train.estimates.facts import *
from fidgpt.train.evaluation import *
from fidgpt.train.gradients import *
from fidgpt.train.harness import *
from fidgpt.train.loss import *
from fidgpt.train.observers import *
from fidgpt.train.precision import *
from fidgpt.train.replay import *
from fidgpt.train.run_directory import *
from fidgpt.train.state import *
from fidgpt.train.step_metrics import *
from fidgpt.train.trackers.console import *
from fidgpt.train.trackers.services import *
from fidgpt.train.trackers.trackers import *
from fidgpt.train.train_step import *
from fidgpt.train.trainer import *

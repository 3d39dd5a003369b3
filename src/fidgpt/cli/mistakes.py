"""The errors that a user can mend, whose message is all that they need to see."""

from fidgpt.data import DataError
from fidgpt.graph import ConfigError
from fidgpt.model import MachineError, StartError
from fidgpt.parallel import ParallelError
from fidgpt.train import CheckpointError, RunError

MISTAKES = (
    ConfigError,
    DataError,
    CheckpointError,
    RunError,
    ParallelError,
    StartError,
    MachineError,
)

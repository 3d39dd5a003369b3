"""How a model is placed on the processes and devices of a run."""

from fidgpt.parallel.data_parallel import DataParallel, ParallelError

__all__ = ["DataParallel", "ParallelError"]

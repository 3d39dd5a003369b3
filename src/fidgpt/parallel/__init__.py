"""Data parallelism and sharding over the processes of a run."""

from fidgpt.parallel.data_parallel import Computation, DataParallel, ParallelError
from fidgpt.parallel.fully_sharded import FullyShardedDataParallel

__all__ = ["Computation", "DataParallel", "FullyShardedDataParallel", "ParallelError"]

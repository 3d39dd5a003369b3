"""Parallelism over processes."""

import fiddle as fdl

from fidgpt.parallel import FullyShardedDataParallel
from fidgpt.train import Trainer


def use_fsdp(cfg: fdl.Config[Trainer]) -> None:
    """Shard weights, gradients and optimizer state over all processes (FSDP2)."""
    cfg.parallel = fdl.Config(FullyShardedDataParallel)


def use_hsdp(cfg: fdl.Config[Trainer], num_shards: int = 8) -> None:
    """Shard within groups of processes, such as those of a node, and replicate across groups.

    Args:
      cfg: the graph to change.
      num_shards: processes per group.
    """
    cfg.parallel = fdl.Config(FullyShardedDataParallel, num_shards=num_shards)

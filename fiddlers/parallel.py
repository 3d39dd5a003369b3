"""How a model lies on the processes of a run."""

import fiddle as fdl

from fidgpt.parallel import FullyShardedDataParallel
from fidgpt.train import Trainer


def use_fsdp(cfg: fdl.Config[Trainer]) -> None:
    """Weights, gradients and the optimizer's memory are dealt over all processes (FSDP2)."""
    cfg.parallel = fdl.Config(FullyShardedDataParallel)


def use_hsdp(cfg: fdl.Config[Trainer], num_shards: int = 8) -> None:
    """The same within groups of processes, such as a node's, each with a copy of the model.

    Args:
      cfg: the graph to change.
      num_shards: processes of a group.
    """
    cfg.parallel = fdl.Config(FullyShardedDataParallel, num_shards=num_shards)

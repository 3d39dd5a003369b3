"""Parallelism over processes: the sizes of one mesh, and what computes on its axes."""

import fiddle as fdl

from fidgpt import graph
from fidgpt.parallel import (
    GatheredContext,
    Mesh,
    MeshParallel,
    SequenceParallel,
    TensorParallel,
    UlyssesContext,
)
from fidgpt.tags import ContextSize, ReplicateSize, ShardSize, TensorSize
from fidgpt.train import Trainer

_SIZES = {
    "replicate": ReplicateSize,
    "shard": ShardSize,
    "context": ContextSize,
    "tensor": TensorSize,
}


def use_fsdp(cfg: fdl.Config[Trainer]) -> None:
    """Shard weights, gradients and optimizer state over all processes (FSDP2).

    With other axes of `use_mesh`, before or after it, these are the processes that they leave.
    """
    use_mesh(cfg, replicate=1, shard=-1)


def use_hsdp(cfg: fdl.Config[Trainer], num_shards: int = 8) -> None:
    """Shard within groups of processes, such as those of a node, and replicate across groups.

    Args:
      cfg: the graph to change.
      num_shards: processes per group.
    """
    use_mesh(cfg, replicate=-1, shard=num_shards)


def use_mesh(
    cfg: fdl.Config[Trainer],
    replicate: int | None = None,
    shard: int | None = None,
    context: int | None = None,
    tensor: int | None = None,
) -> None:
    """Divide rows, weights, sequences and matrix products over a mesh of processes.

    The product of the sizes is the number of processes; one size may be -1, for those that are
    left. Sizes that are not given stay as they are: 1, unless something else sets them.

    Args:
      cfg: the graph to change.
      replicate: copies of the model, each with its own rows of a batch.
      shard: processes that share the weights of one copy (FSDP), each with its own rows.
      context: processes that share the tokens of each sequence.
      tensor: processes that share each matrix product.
    """
    if fdl.get_callable(cfg.parallel) is not MeshParallel:
        cfg.parallel = graph.swapped(cfg.parallel, MeshParallel)
        cfg.parallel.mesh = fdl.Config(Mesh)
        cfg.parallel.tensor = fdl.Config(TensorParallel)
        cfg.parallel.context = fdl.Config(GatheredContext)
        for name, tag in _SIZES.items():
            fdl.add_tag(cfg.parallel.mesh, name, tag)
    for name, size in zip(_SIZES, (replicate, shard, context, tensor), strict=True):
        if size is not None:
            setattr(cfg.parallel.mesh, name, size)


def use_ulysses(cfg: fdl.Config[Trainer]) -> None:
    """Split sequences by exchanging tokens for heads around attention, instead of gathering keys.

    It takes effect with `use_mesh(context=...)`, which may come before or after it.
    """
    use_mesh(cfg)
    cfg.parallel.context = fdl.Config(UlyssesContext)


def use_sequence_parallel(cfg: fdl.Config[Trainer]) -> None:
    """Split the stream between matrix products along the sequence, over the processes of `tensor`.

    It takes effect with `use_mesh(tensor=...)`, which may come before or after it.
    """
    use_mesh(cfg)
    cfg.parallel.tensor = graph.swapped(cfg.parallel.tensor, SequenceParallel)


def use_chunked_sums(cfg: fdl.Config[Trainer], num_chunks: int = 2) -> None:
    """Send outputs that the processes of `tensor` sum in chunks, while the next are computed.

    It takes effect with `use_mesh(tensor=...)`, which may come before or after it.

    Args:
      cfg: the graph to change.
      num_chunks: of the tokens of each sequence.
    """
    use_mesh(cfg)
    cfg.parallel.tensor.num_chunks = num_chunks

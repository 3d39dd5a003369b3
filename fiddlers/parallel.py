"""Parallelism over processes."""

import fiddle as fdl

from fidgpt import graph
from fidgpt.parallel import (
    FullyShardedDataParallel,
    GatheredContext,
    Mesh,
    MeshParallel,
    SequenceParallel,
    TensorParallel,
    UlyssesContext,
)
from fidgpt.tags import ContextSize, ReplicateSize, ShardSize, TensorSize
from fidgpt.train import Trainer


def use_fsdp(cfg: fdl.Config[Trainer]) -> None:
    """Shard weights, gradients and optimizer state over all processes (FSDP2)."""
    use_hsdp(cfg)
    del cfg.parallel.num_shards


def use_hsdp(cfg: fdl.Config[Trainer], num_shards: int = 8) -> None:
    """Shard within groups of processes, such as those of a node, and replicate across groups.

    Args:
      cfg: the graph to change.
      num_shards: processes per group.
    """
    cfg.parallel = graph.swapped(cfg.parallel, FullyShardedDataParallel)
    cfg.parallel.num_shards = num_shards


def use_mesh(
    cfg: fdl.Config[Trainer], replicate: int = 1, shard: int = 1, context: int = 1, tensor: int = 1
) -> None:
    """Divide rows, weights, sequences and matrix products over a mesh of processes.

    The product of the sizes is the number of processes; one size may be -1, for those that are
    left.

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
    mesh = cfg.parallel.mesh
    mesh.replicate = ReplicateSize.new(replicate)
    mesh.shard = ShardSize.new(shard)
    mesh.context = ContextSize.new(context)
    mesh.tensor = TensorSize.new(tensor)


def use_ulysses(cfg: fdl.Config[Trainer]) -> None:
    """Split sequences by exchanging tokens for heads around attention, instead of gathering keys.

    It takes effect with `use_mesh(context=...)`, which may come before or after it.
    """
    if fdl.get_callable(cfg.parallel) is not MeshParallel:
        use_mesh(cfg)
    cfg.parallel.context = fdl.Config(UlyssesContext)


def use_sequence_parallel(cfg: fdl.Config[Trainer]) -> None:
    """Split the stream between matrix products along the sequence, over the processes of `tensor`.

    It takes effect with `use_mesh(tensor=...)`, which may come before or after it.
    """
    if fdl.get_callable(cfg.parallel) is not MeshParallel:
        use_mesh(cfg)
    cfg.parallel.tensor = graph.swapped(cfg.parallel.tensor, SequenceParallel)


def use_chunked_sums(cfg: fdl.Config[Trainer], num_chunks: int = 2) -> None:
    """Send outputs that the processes of `tensor` sum in chunks, while the next are computed.

    It takes effect with `use_mesh(tensor=...)`, which may come before or after it.

    Args:
      cfg: the graph to change.
      num_chunks: of the tokens of each sequence.
    """
    if fdl.get_callable(cfg.parallel) is not MeshParallel:
        use_mesh(cfg)
    cfg.parallel.tensor.num_chunks = num_chunks

"""Parallelism over processes: the sizes of one mesh, and what computes on its axes."""

import fiddle as fdl

from fidgpt import graph
from fidgpt.parallel import (
    ExpertParallel,
    GatheredContext,
    Mesh,
    MeshParallel,
    SequenceParallel,
    TensorParallel,
    TorchSchedule,
    UlyssesContext,
)
from fidgpt.tags import ContextSize, ExpertSize, PipelineSize, ReplicateSize, ShardSize, TensorSize
from fidgpt.train import PipelineStep, Trainer, TrainStep

__all__ = [
    "use_chunked_sums",
    "use_fsdp",
    "use_hsdp",
    "use_mesh",
    "use_pipeline",
    "use_sequence_parallel",
    "use_ulysses",
    "use_zero2",
]

_SIZES = {
    "replicate": ReplicateSize,
    "shard": ShardSize,
    "context": ContextSize,
    "tensor": TensorSize,
    "pipeline": PipelineSize,
    "expert": ExpertSize,
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


def use_zero2(cfg: fdl.Config[Trainer]) -> None:
    """Keep gathered weights from the first forward to the last backward pass of a step (ZeRO 2).

    A step then gathers each weight once, and not for both passes of each micro-batch, and a process
    has memory for all weights of its layers in the format of the computation. It takes effect with
    `use_fsdp` or `use_mesh(shard=...)`, which may come before or after it.
    """
    use_mesh(cfg)
    cfg.parallel.reshards = False


def use_mesh(
    cfg: fdl.Config[Trainer],
    replicate: int | None = None,
    shard: int | None = None,
    context: int | None = None,
    tensor: int | None = None,
    pipeline: int | None = None,
    expert: int | None = None,
) -> None:
    """Divide rows, weights, sequences, products, layers and experts over a mesh of processes.

    The product of the sizes is the number of processes, without `expert`, which has no processes of
    its own; one size may be -1, for those that are left. Sizes that are not given stay as they are:
    1, unless something else sets them.

    Args:
      cfg: the graph to change.
      replicate: copies of the model, each with its own rows of a batch.
      shard: processes that share the weights of one copy (FSDP), each with its own rows.
      context: processes that share the tokens of each sequence.
      tensor: processes that share each matrix product.
      pipeline: processes that share the layers of one copy; see `use_pipeline`.
      expert: of the processes of shard x context, how many share the experts of mixtures.
    """
    if fdl.get_callable(cfg.parallel) is not MeshParallel:
        cfg.parallel = graph.swapped(cfg.parallel, MeshParallel)
        cfg.parallel.mesh = fdl.Config(Mesh)
        cfg.parallel.tensor = fdl.Config(TensorParallel)
        cfg.parallel.context = fdl.Config(GatheredContext)
        cfg.parallel.expert = fdl.Config(ExpertParallel)
        for name, tag in _SIZES.items():
            fdl.add_tag(cfg.parallel.mesh, name, tag)
    sizes = (replicate, shard, context, tensor, pipeline, expert)
    for name, size in zip(_SIZES, sizes, strict=True):
        if size is not None:
            setattr(cfg.parallel.mesh, name, size)
    if pipeline not in (None, 1) and fdl.get_callable(cfg.step) is not PipelineStep:
        use_pipeline(cfg)


def use_pipeline(
    cfg: fdl.Config[Trainer], schedule: str = "1f1b", stages_per_rank: int | None = None
) -> None:
    """Pass micro-batches through processes that have a part of the layers each.

    It takes effect with `use_mesh(pipeline=...)`, which may come before or after it, and which uses
    `1f1b` without it. `set:step.stages=[...]` sets the number of layers of each stage.

    Args:
      cfg: the graph to change.
      schedule: gpipe, 1f1b, interleaved, breadth_first, zero_bubble, zero_bubble_v or dual_pipe_v.
      stages_per_rank: of each process; None for the least that the schedule takes.

    Raises:
      ConfigError: the step has an objective of its own.
    """
    use_mesh(cfg)
    if (step := fdl.get_callable(cfg.step)) not in (TrainStep, PipelineStep):
        raise graph.ConfigError(
            f"the step of this config is a {step.__name__}, and micro-batches pass through a "
            "pipeline by a PipelineStep: leave one of the two out."
        )
    cfg.step = graph.swapped(cfg.step, PipelineStep)
    cfg.step.schedule = fdl.Config(TorchSchedule, schedule, stages_per_rank=stages_per_rank)


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

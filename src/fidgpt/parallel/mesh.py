"""The mesh of a run's processes: the axes that fidgpt has, and their sizes."""

from dataclasses import dataclass

from fidgpt.parallel.axes import Axis, MeshSizes, Weights, axis_size
from fidgpt.parallel.context import CONTEXT
from fidgpt.parallel.experts import EXPERT
from fidgpt.parallel.pipeline import PIPELINE
from fidgpt.parallel.tensor import TENSOR

__all__ = ["Mesh"]

REPLICATE = Axis(name="replicate", splits_rows=True)
SHARD = Axis(name="shard", splits_rows=True, weights=Weights.SHARDS)


@dataclass(frozen=True, kw_only=True)
class Mesh(MeshSizes):
    """The number of processes on each axis of parallelism; their product is the size of the run.

    The axis `expert` has no processes of its own and does not count.

    Args:
      pipeline: processes that share the layers of one copy, on the same tokens.
      replicate: copies of the model, each with its own rows of a batch.
      shard: processes that share the weights, gradients and optimizer state of one copy (FSDP),
        each with its own rows.
      context: processes that share the tokens of each sequence.
      tensor: processes that share each matrix product, on the same tokens.
      expert: of the processes of shard x context, how many share the experts of a mixture.

    One size may be -1: that axis takes the processes that the others leave.

    Raises:
      ValueError: a size is neither -1 nor at least 1, or several are -1.
    """

    pipeline: int = axis_size(PIPELINE)
    replicate: int = axis_size(REPLICATE)
    shard: int = axis_size(SHARD)
    context: int = axis_size(CONTEXT)
    tensor: int = axis_size(TENSOR)
    expert: int = axis_size(EXPERT)

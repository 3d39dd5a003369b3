"""Parallelism over the processes of a run: its mesh, and how a model is divided along each axis."""

from fidgpt.parallel.context import GatheredContext, UlyssesContext
from fidgpt.parallel.data_parallel import Computation, DataParallel, ParallelError
from fidgpt.parallel.mesh import Axis, Mesh
from fidgpt.parallel.mesh_parallel import AxisPart, FullyShardedDataParallel, MeshParallel
from fidgpt.parallel.tensor import SequenceParallel, TensorParallel

__all__ = [
    "Axis",
    "AxisPart",
    "Computation",
    "DataParallel",
    "FullyShardedDataParallel",
    "GatheredContext",
    "Mesh",
    "MeshParallel",
    "ParallelError",
    "SequenceParallel",
    "TensorParallel",
    "UlyssesContext",
]

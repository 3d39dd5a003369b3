"""Parallelism over the processes of a run: its mesh, and how a model is divided along each axis."""

from fidgpt.parallel.axes import *
from fidgpt.parallel.context import *
from fidgpt.parallel.data_parallel import *
from fidgpt.parallel.experts import *
from fidgpt.parallel.pipeline import *
from fidgpt.parallel.pipeline_schedule import *
from fidgpt.parallel.tensor import *

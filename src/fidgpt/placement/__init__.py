"""Divided computations: what components declare, and what a process holds of a parameter."""

from fidgpt.placement.shards import *
from fidgpt.placement.splits import *

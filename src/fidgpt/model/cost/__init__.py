"""What a model costs: operations, parameters and memory, told by its parts or measured on it.

Nothing here needs the model's memory: it may be on the meta device, and of any size.
"""

from fidgpt.model.cost.activations import ActivationBytes, activation_bytes
from fidgpt.model.cost.generation import cache_bytes
from fidgpt.model.cost.measured import says_all_flops, unsaid_flops
from fidgpt.model.cost.operations import TRAINING_PASSES, flops_per_token
from fidgpt.model.cost.parameters import (
    ParameterCount,
    bytes_of,
    count_parameters,
    shared_parameters,
)
from fidgpt.model.cost.places import PlaceCost, cost_by_place
from fidgpt.model.cost.with_zeros import AsWithoutMemory, with_zeros
from fidgpt.model.cost.without_memory import without_memory

__all__ = [
    "TRAINING_PASSES",
    "ActivationBytes",
    "AsWithoutMemory",
    "ParameterCount",
    "PlaceCost",
    "activation_bytes",
    "bytes_of",
    "cache_bytes",
    "cost_by_place",
    "count_parameters",
    "flops_per_token",
    "says_all_flops",
    "shared_parameters",
    "unsaid_flops",
    "with_zeros",
    "without_memory",
]

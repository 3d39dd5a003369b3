"""What a model costs: operations, parameters and memory, told by its parts or measured on it.

Nothing here needs the model's memory: it may be on the meta device, and of any size.
"""

from fidgpt.cost.flops import (
    TRAINING_PASSES,
    ParameterCount,
    PlaceCost,
    bytes_of,
    cache_bytes,
    cost_by_place,
    count_parameters,
    flops_per_token,
    shared_parameters,
)
from fidgpt.cost.measured import (
    AsWithoutMemory,
    says_all_flops,
    unsaid_flops,
    with_zeros,
    without_memory,
)
from fidgpt.cost.memory import ActivationBytes, activation_bytes

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

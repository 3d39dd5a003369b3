"""What a model costs: operations, parameters and memory, declared by its modules or measured.

Nothing here needs the model's memory: it may be on the meta device, and of any size.
"""

from fidgpt.cost.flops import (
    TRAINING_PASSES,
    ParameterCount,
    PlaceCost,
    alike_layers,
    bytes_of,
    cache_bytes,
    cost_by_place,
    count_parameters,
    first_of_each,
    flops_per_token,
    shared_parameters,
    undeclared_flops,
)
from fidgpt.cost.memory import ActivationBytes, activation_bytes, with_zeros, without_memory

__all__ = [
    "TRAINING_PASSES",
    "ActivationBytes",
    "ParameterCount",
    "PlaceCost",
    "activation_bytes",
    "alike_layers",
    "bytes_of",
    "cache_bytes",
    "cost_by_place",
    "count_parameters",
    "first_of_each",
    "flops_per_token",
    "shared_parameters",
    "undeclared_flops",
    "with_zeros",
    "without_memory",
]

"""Optimizers, parameter groups and schedules."""

from fidgpt.optim.adafactor import Adafactor
from fidgpt.optim.adam import adamw
from fidgpt.optim.groups import (
    ByName,
    Predicate,
    decay_matrices,
    is_hidden_matrix,
    is_matrix,
    is_table,
    is_vector,
    mup_groups,
    split_hidden_matrices,
)
from fidgpt.optim.lion import Lion
from fidgpt.optim.muon import Muon
from fidgpt.optim.rules import LayerDecay, ParameterGroups, RateScale, Rule
from fidgpt.optim.schedules import (
    Constant,
    CosineDecay,
    DecayShape,
    Fall,
    InverseDecay,
    InverseSqrtDecay,
    LinearDecay,
    NoDecay,
    Phases,
    PolynomialDecay,
    SqrtDecay,
    WarmupCosine,
    WarmupStableDecay,
    fraction,
    steps_for_tokens,
)
from fidgpt.schedule import Schedule

__all__ = [
    "Adafactor",
    "ByName",
    "Constant",
    "CosineDecay",
    "DecayShape",
    "Fall",
    "InverseDecay",
    "InverseSqrtDecay",
    "LayerDecay",
    "LinearDecay",
    "Lion",
    "Muon",
    "NoDecay",
    "ParameterGroups",
    "Phases",
    "PolynomialDecay",
    "Predicate",
    "RateScale",
    "Rule",
    "Schedule",
    "SqrtDecay",
    "WarmupCosine",
    "WarmupStableDecay",
    "adamw",
    "decay_matrices",
    "fraction",
    "is_hidden_matrix",
    "is_matrix",
    "is_table",
    "is_vector",
    "mup_groups",
    "split_hidden_matrices",
    "steps_for_tokens",
]

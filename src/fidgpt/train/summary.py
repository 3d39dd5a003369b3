"""All that is known of a run before it is built: where its cost is, and what it needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fidgpt.cost import (
    ParameterCount,
    PlaceCost,
    cache_bytes,
    cost_by_place,
    count_parameters,
    without_memory,
)
from fidgpt.train.device import Machine
from fidgpt.train.facts import Facts
from fidgpt.train.footprint import NEEDS_NUMBERS
from fidgpt.train.parameter_groups import GroupFacts, groups_of
from fidgpt.train.trainer import gather_facts, measured_flops

if TYPE_CHECKING:
    from fidgpt.train.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """Bytes that generation keeps.

    Attributes:
      token: of a token, as long as every attention still looks back at all of them.
      context: of a text as long as a training sequence.
      seq_len: tokens of that.
    """

    token: int
    context: int
    seq_len: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The facts of a run, and more.

    Attributes:
      facts: what every run shows.
      parameters: by how they are used.
      places: the cost of a token's forward pass, by place.
      runs_without_memory: whether the model could be run on the meta device to measure it.
      cache: what generation keeps; None where it needs numbers.
      groups: what the optimizer treats alike.
    """

    facts: Facts
    parameters: ParameterCount
    places: Sequence[PlaceCost]
    runs_without_memory: bool
    cache: CacheSize | None
    groups: Sequence[GroupFacts]


def summarise(trainer: "Trainer", machine: Machine) -> Summary:
    """Counts a run as it would be on a machine; its model may be on the meta device."""
    measured = measured_flops(trainer.model, seq_len=trainer.seq_len)
    return Summary(
        facts=gather_facts(trainer, machine, unsaid=measured or {}),
        parameters=count_parameters(trainer.model),
        places=cost_by_place(trainer.model, seq_len=trainer.seq_len, measured=measured or {}),
        runs_without_memory=measured is not None,
        cache=_cache_size(trainer),
        groups=groups_of(trainer),
    )


def _cache_size(trainer: "Trainer") -> CacheSize | None:
    model = trainer.precision.replica(without_memory(trainer.model)).eval()
    try:
        token, context = (cache_bytes(model, context=count) for count in (1, trainer.seq_len))
    except NEEDS_NUMBERS:
        return None
    return CacheSize(token=token, context=context, seq_len=trainer.seq_len)

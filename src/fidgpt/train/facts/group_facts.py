"""The groups of parameters that an optimizer has, and in short what each of them holds."""

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from fidgpt.model.cost import without_memory
from fidgpt.optim.predicates import train_only
from fidgpt.train.facts.footprint import NEEDS_NUMBERS
from fidgpt.train.steps.group_schedules import peak_rate

if TYPE_CHECKING:
    from fidgpt.train.trainer import Trainer

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
Layers = Mapping[str, Collection[int]]


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """A group of parameters.

    Attributes:
      name: what it is called; its number where it has no name.
      learning_rate: at the peak of the schedule; None where the optimizer has none.
      weight_decay: None where the optimizer has none.
      settings: every other one that is a number, too.
      num_tensors: parameters.
      num_parameters: numbers in them.
      holds: the parameters' names, those that differ in a layer or in one module as one.
    """

    name: str
    learning_rate: float | None
    weight_decay: float | None
    settings: Mapping[str, float]
    num_tensors: int
    num_parameters: int
    holds: str


def trainable_copy(trainer: "Trainer") -> nn.Module:
    """The model of a run without memory, with `requires_grad` as the run will set it."""
    model = without_memory(trainer.model)
    train_only(model, trainer.trainable)
    return model


def groups_of(trainer: "Trainer") -> list[GroupFacts]:
    """The groups of a run; its model may be on the meta device, and is left as it is."""
    model = trainable_copy(trainer)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    layers = _layers_by_pattern(names.values())
    groups = trainer.groups(model)
    with contextlib.suppress(*NEEDS_NUMBERS):  # what the groups themselves say is known anyway
        groups = trainer.optimizer(groups).param_groups
    return [
        GroupFacts(
            name=str(group.get("name", number)),
            learning_rate=peak_rate(group) if "lr" in group else None,
            weight_decay=group.get("weight_decay"),
            settings={name: value for name, value in group.items() if _is_number(value)},
            num_tensors=len(group["params"]),
            num_parameters=_size(group["params"]),
            holds=in_short([names[id(p)] for p in group["params"]], layers),
        )
        for number, group in enumerate(groups)
    ]


def in_short(names: Iterable[str], layers: Layers) -> str:
    """Names as one would write them: `blocks.*.attention.{query,key}.weight, norm.weight`.

    Args:
      names: of parameters.
      layers: numbers of all layers that have a parameter, by its name with `*` for the number.
    """
    siblings: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for pattern, numbers in _layers_by_pattern(names).items():
        place = "*" if numbers >= {*layers[pattern]} else _ranges(sorted(numbers))
        module, _, leaf = pattern.replace("*", place, 1).rpartition(".")
        parent, _, own = module.rpartition(".")
        siblings[parent, leaf].append(own)
    texts = []
    for (parent, leaf), own in siblings.items():
        together = own[0] if len(own) == 1 else f"{{{','.join(own)}}}"
        texts.append(".".join(part for part in (parent, together, leaf) if part))
    return ", ".join(texts)


def _layers_by_pattern(names: Iterable[str]) -> dict[str, set[int]]:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for name in names:
        number = _NUMBER.search(name)
        found[_NUMBER.sub("*", name, count=1)] |= {int(number[0])} if number else set()
    return found


def _ranges(numbers: list[int]) -> str:
    """`[0, 1, 2, 5]` as `{0..2,5}`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
    return texts[0] if len(numbers) == 1 else f"{{{','.join(texts)}}}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _size(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)

"""Parameter groups as the optimizer treats them, for a person to read."""

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from fidgpt.cost import without_memory
from fidgpt.optim.groups import Grouping, train_only
from fidgpt.train.footprint import NEEDS_NUMBERS
from fidgpt.train.step import peak_rate

_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
Layers = Mapping[str, Collection[int]]
Trainable = Callable[[str, nn.Parameter], bool]


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """A group of parameters.

    Attributes:
      name: of the group; its index if it has none.
      learning_rate: at the peak of the schedule; None if the optimizer has none.
      weight_decay: None if the optimizer has none.
      settings: every setting that is a number.
      num_tensors: parameters.
      num_parameters: numbers in them.
      holds: the parameters' names, shortened as by `in_short`.
    """

    name: str
    learning_rate: float | None
    weight_decay: float | None
    settings: Mapping[str, float]
    num_tensors: int
    num_parameters: int
    holds: str


def trainable_copy(model: nn.Module, trainable: Trainable | None) -> nn.Module:
    """Return a copy of the model on the meta device with `requires_grad` as the run sets it."""
    copy = without_memory(model)
    train_only(copy, trainable)
    return copy


def parameter_groups(
    model: nn.Module,
    *,
    groups: Grouping,
    optimizer: Callable[..., Optimizer],
    trainable: Trainable | None,
) -> list[GroupFacts]:
    """Return the groups of a run.

    Args:
      model: may be on the meta device, and is left unchanged.
      groups: splits the parameters into groups.
      optimizer: makes the optimizer from the groups.
      trainable: whether a parameter is trained, by its name; None keeps its `requires_grad`.
    """
    model = trainable_copy(model, trainable)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    layers = _layers_by_pattern(names.values())
    found = groups(model)
    with contextlib.suppress(*NEEDS_NUMBERS):  # without the optimizer's defaults then
        found = optimizer(found).param_groups
    return [
        GroupFacts(
            name=str(group.get("name", number)),
            learning_rate=peak_rate(group) if "lr" in group else None,
            weight_decay=group.get("weight_decay"),
            settings={name: value for name, value in group.items() if _is_number(value)},
            num_tensors=len(group["params"]),
            num_parameters=sum(parameter.numel() for parameter in group["params"]),
            holds=in_short([names[id(p)] for p in group["params"]], layers),
        )
        for number, group in enumerate(found)
    ]


def in_short(names: Iterable[str], layers: Layers) -> str:
    """Shorten names to the form `blocks.*.attention.{query,key}.weight, norm.weight`.

    Args:
      names: of parameters.
      layers: indices of all layers that have a parameter, by its name with `*` for the index.
    """
    siblings: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for pattern, numbers in _layers_by_pattern(names).items():
        index = "*" if numbers >= {*layers[pattern]} else _ranges(sorted(numbers))
        module, _, leaf = pattern.replace("*", index, 1).rpartition(".")
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
        number = _LAYER.search(name)
        found[_LAYER.sub("*", name, count=1)] |= {int(number[0])} if number else set()
    return found


def _ranges(numbers: list[int]) -> str:
    """Write `[0, 1, 2, 5]` as `{0..2,5}`."""
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

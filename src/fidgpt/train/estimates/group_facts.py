"""The groups of parameters as the optimizer treats them, with their names in short."""

import contextlib
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fidgpt.cost import NEEDS_NUMBERS
from fidgpt.train.estimates.recipe import Recipe, trainable_copy
from fidgpt.train.optimizer_groups import decay_at_any_width, peak_rate

_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def without_layer(path: str) -> str:
    """Return the path of a module or parameter with `*` for the number of its layer."""
    return _LAYER.sub("*", path, count=1)


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """A group of parameters.

    Attributes:
      name: of the group; its index if it has none.
      learning_rate: at the peak of the schedule; None if the optimizer has none.
      weight_decay: None if the optimizer has none.
      settings: every setting that is a number.
      num_parameters: numbers in all of its tensors.
      holds: the parameters' names, shortened as by `in_short`.
    """

    name: str
    learning_rate: float | None
    weight_decay: float | None
    settings: Mapping[str, float]
    num_parameters: int
    holds: str


def parameter_groups(recipe: Recipe) -> list[GroupFacts]:
    """Return the groups of a run."""
    model = trainable_copy(recipe.model, recipe.trainable)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    layers = _layers_by_pattern(names.values())
    groups = recipe.groups(model)
    with contextlib.suppress(*NEEDS_NUMBERS):  # without the optimizer's defaults then
        optimizer = recipe.optimizer(groups)
        decay_at_any_width(optimizer)
        groups = optimizer.param_groups
    return [
        GroupFacts(
            name=str(group.get("name", number)),
            learning_rate=peak_rate(group) if "lr" in group else None,
            weight_decay=group.get("weight_decay"),
            settings={
                name: value
                for name, value in group.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            },
            num_parameters=sum(parameter.numel() for parameter in group["params"]),
            holds=in_short([names[id(p)] for p in group["params"]], layers),
        )
        for number, group in enumerate(groups)
    ]


def in_short(names: Iterable[str], layers: Mapping[str, Collection[int]]) -> str:
    """Shorten names to the form `blocks.*.attention.{query,key}.weight, norm.weight`.

    Args:
      names: of parameters.
      layers: indices of all layers that have a parameter, by its name with `*` for the index.
    """
    siblings: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for pattern, numbers in _layers_by_pattern(names).items():
        index = "*" if numbers >= {*layers[pattern]} else _ranges(sorted(numbers))
        module, _, leaf = pattern.replace("*", index, 1).rpartition(".")
        parent, _, name = module.rpartition(".")
        siblings[parent, leaf].append(name)
    texts = []
    for (parent, leaf), children in siblings.items():
        together = children[0] if len(children) == 1 else f"{{{','.join(children)}}}"
        texts.append(".".join(part for part in (parent, together, leaf) if part))
    return ", ".join(texts)


def _layers_by_pattern(names: Iterable[str]) -> dict[str, set[int]]:
    layers: defaultdict[str, set[int]] = defaultdict(set)
    for name in names:
        number = _LAYER.search(name)
        layers[without_layer(name)] |= {int(number[0])} if number else set()
    return layers


def _ranges(numbers: list[int]) -> str:
    """Write `[0, 1, 2, 5]` as `{0..2,5}`."""
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
    return texts[0] if len(numbers) == 1 else f"{{{','.join(texts)}}}"

"""Groups of parameters by rules: what each asks, and what it says of those that answer."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import nn

from fidgpt.optim.groups import Predicate
from fidgpt.ranges import require_not_negative

__all__ = ["LayerDecay", "ParameterGroups", "RateScale", "Rule"]


_LAYER = re.compile(r"(?:^|\.)blocks\.(\d+)\.")


@runtime_checkable
class RateScale(Protocol):
    """How a parameter's learning rate relates to that of the others."""

    def __call__(self, name: str, model: nn.Module, /) -> float: ...


class LayerDecay:
    """Every layer learns slower than the next by a factor, and the embedding slowest.

    The last layer, and what comes after it, learn at the full rate (Howard and Ruder, 2018,
    arXiv:1801.06146; Clark et al., 2020, arXiv:2003.10555).

    Args:
      factor: from 0 to 1.
    """

    def __init__(self, factor: float = 0.9) -> None:
        if not 0 < factor <= 1:
            raise ValueError(f"{factor=} must be above 0 and at most 1.")
        self.factor = factor

    def __call__(self, name: str, model: nn.Module) -> float:
        found = [_LAYER.search(one) for one, _ in model.named_parameters()]
        last = max((int(layer[1]) for layer in found if layer), default=-1)
        if layer := _LAYER.search(name):
            return self.factor ** (last - int(layer[1]))
        return self.factor ** (last + 1) if name.startswith("embedding.") else 1.0


class Rule:
    """What is so for some parameters.

    Args:
      name: what they are called where groups are shown.
      match: which ones it is about.
      lr_scale: their learning rate, as a multiple of the optimizer's.
      weight_decay: in place of the optimizer's.
      settings: anything else that the optimizer knows of a group, such as `betas`.

    Raises:
      ValueError: the multiple or the decay is negative, or infinite.
    """

    def __init__(
        self,
        name: str,
        *,
        match: Predicate,
        lr_scale: float | RateScale = 1.0,
        weight_decay: float | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(lr_scale):
            require_not_negative("lr_scale", lr_scale)
        if weight_decay is not None:
            require_not_negative("weight_decay", weight_decay)
        self.name = name
        self.match = match
        self.lr_scale = lr_scale
        self.settings = dict(settings or {})
        if weight_decay is not None:
            self.settings["weight_decay"] = weight_decay

    def scale_of(self, name: str, model: nn.Module) -> float:
        """The multiple for one parameter."""
        return self.lr_scale(name, model) if callable(self.lr_scale) else self.lr_scale


@dataclass
class _Deal:
    """Parameters for which the same rules say the same."""

    rules: list[Rule]
    lr_scale: float
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return ", ".join(rule.name for rule in self.rules) or "others"

    def group(self, name: str) -> dict[str, Any]:
        settings = {key: value for rule in self.rules for key, value in rule.settings.items()}
        if self.lr_scale != 1:
            settings["lr_scale"] = self.lr_scale
        return {"name": name, "params": [*self.parameters.values()], **settings}


class ParameterGroups:
    """Deals the parameters of a model into groups, by rules.

    Every rule that matches a parameter has its say: rates multiply, and of other settings the last
    one counts. Parameters for which the same is said are a group, called by its rules, and where
    several would be called so, by its layers too: `matrices, layer 2`. Those that no rule matches
    are the group `others`, as the optimizer says.

    Args:
      rules: in the order in which they are asked.

    Raises:
      ValueError: when a model is dealt: a rule matches nothing, which is a mistake in it.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = list(rules)

    def __call__(self, model: nn.Module) -> list[dict[str, Any]]:
        deals: dict[tuple[Any, ...], _Deal] = {}
        used: set[int] = set()
        for name, parameter in model.named_parameters():
            numbers = tuple(i for i, one in enumerate(self.rules) if one.match(name, parameter))
            used.update(numbers)
            if not parameter.requires_grad:
                continue
            rules = [self.rules[number] for number in numbers]
            scale = math.prod((rule.scale_of(name, model) for rule in rules), start=1.0)
            deal = deals.setdefault((not numbers, numbers, scale), _Deal(rules, scale))
            deal.parameters[name] = parameter
        self._require_all(used)
        names = Counter(deal.name for deal in deals.values())
        return [
            deal.group(deal.name if names[deal.name] == 1 else f"{deal.name}, {_place(deal)}")
            for deal in (deals[key] for key in sorted(deals))
        ]

    def _require_all(self, used: set[int]) -> None:
        idle = [repr(rule.name) for i, rule in enumerate(self.rules) if i not in used]
        if idle:
            raise ValueError(
                f"no parameter matches the rule {' or '.join(idle)} of the groups: mend "
                "its `match`, or leave it out."
            )


def _place(deal: _Deal) -> str:
    """Where its parameters are: `layer 2`, `layers 0, 2, 4`, `embedding`, or `layer 5, norm`."""
    found = [_LAYER.search(name) for name in deal.parameters]
    layers = sorted({int(layer[1]) for layer in found if layer})
    numbers = ", ".join(map(str, layers))
    outside = [
        name.partition(".")[0]
        for name, layer in zip(deal.parameters, found, strict=True)
        if layer is None
    ]
    inside = [f"layer{'s' * (len(layers) > 1)} {numbers}"] if layers else []
    return ", ".join([*inside, *dict.fromkeys(outside)])

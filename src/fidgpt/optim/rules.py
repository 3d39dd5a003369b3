"""Parameter groups by rules."""

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
    """Returns the factor of a parameter's learning rate."""

    def __call__(self, name: str, model: nn.Module, /) -> float: ...


class LayerDecay:
    """Layer-wise learning-rate decay: each layer's rate is `factor` times that of the next.

    The last layer and the modules after it have the full rate; the embedding has the lowest (Howard
    and Ruder, 2018, arXiv:1801.06146; Clark et al., 2020, arXiv:2003.10555).

    Args:
      factor: above 0 and at most 1.

    Raises:
      ValueError: the factor is out of range.
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
    """Settings of the parameters that it matches.

    Args:
      name: of the group, where groups are shown.
      match: selects parameters.
      lr_scale: multiplies the learning rate.
      weight_decay: replaces the optimizer's.
      settings: further group options of the optimizer, such as `betas`.

    Raises:
      ValueError: lr_scale or weight_decay is negative or not finite.
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
        """Return the learning-rate factor of one parameter."""
        return self.lr_scale(name, model) if callable(self.lr_scale) else self.lr_scale


@dataclass
class _Group:
    """Parameters that the same rules match, with one learning-rate factor."""

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
    """Splits the parameters of a model into groups, by rules.

    All rules that match a parameter apply: learning-rate factors multiply, and for other settings
    the last rule counts. Parameters with equal settings form a group, named after its rules and,
    where needed to tell groups apart, its layers: `matrices, layer 2`. Parameters without a rule
    form the group `others`, with the optimizer's settings.

    Args:
      rules: in order of application.

    Raises:
      ValueError: when called, if a rule matches no parameter.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = list(rules)

    def __call__(self, model: nn.Module) -> list[dict[str, Any]]:
        groups: dict[tuple[Any, ...], _Group] = {}
        used: set[int] = set()
        for name, parameter in model.named_parameters():
            numbers = tuple(i for i, one in enumerate(self.rules) if one.match(name, parameter))
            used.update(numbers)
            if not parameter.requires_grad:
                continue
            rules = [self.rules[number] for number in numbers]
            scale = math.prod((rule.scale_of(name, model) for rule in rules), start=1.0)
            group = groups.setdefault((not numbers, numbers, scale), _Group(rules, scale))
            group.parameters[name] = parameter
        self._require_all(used)
        names = Counter(group.name for group in groups.values())
        return [
            group.group(group.name if names[group.name] == 1 else f"{group.name}, {_place(group)}")
            for group in (groups[key] for key in sorted(groups))
        ]

    def _require_all(self, used: set[int]) -> None:
        idle = [repr(rule.name) for i, rule in enumerate(self.rules) if i not in used]
        if idle:
            raise ValueError(
                f"no parameter matches the rule {' or '.join(idle)} of the groups: correct its "
                "`match`, or remove it."
            )


def _place(group: _Group) -> str:
    """Return where its parameters are, such as `layers 0, 2, 4` or `layer 5, norm`."""
    found = [_LAYER.search(name) for name in group.parameters]
    layers = sorted({int(layer[1]) for layer in found if layer})
    numbers = ", ".join(map(str, layers))
    outside = [
        name.partition(".")[0]
        for name, layer in zip(group.parameters, found, strict=True)
        if layer is None
    ]
    inside = [f"layer{'s' * (len(layers) > 1)} {numbers}"] if layers else []
    return ", ".join([*inside, *dict.fromkeys(outside)])

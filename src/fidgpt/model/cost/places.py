"""The cost of a model by the places of its parts: attention, MLP, tables."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from fidgpt.model.cost.operations import operations

_LAYER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(kw_only=True)
class PlaceCost:
    """What the parts at one place of every layer cost, if they are of one kind.

    Attributes:
      place: the path of the part, `*` for the number of a layer: `blocks.*.attention`.
      kind: its class.
      count: how many there are.
      parameters: numbers to learn; what another place holds too counts at the first one.
      linear: floating-point operations a token of the forward pass in Linears.
      own: those besides, in attentions the scores and what is done with them, in mixtures the
        experts.
      measured: how many of `own` nobody says and torch counted.
    """

    place: str
    kind: str
    count: int = 0
    parameters: int = 0
    linear: int = 0
    own: int = 0
    measured: int = 0

    @property
    def flops(self) -> int:
        """All floating-point operations a token of the forward pass."""
        return self.linear + self.own


def cost_by_place(
    model: nn.Module, *, seq_len: int, measured: Mapping[str, int]
) -> list[PlaceCost]:
    """The cost of everything in the model, in its order.

    Args:
      model: what is counted.
      seq_len: tokens of a sequence.
      measured: what modules compute that say nothing, by their paths.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    costs: dict[tuple[str, str], PlaceCost] = {}

    def at(path: str) -> PlaceCost:
        holder = _holder(path)
        place, kind = _LAYER.sub("*", holder), type(modules[holder]).__name__
        return costs.setdefault((place, kind), PlaceCost(place=place, kind=kind))

    seen: set[nn.Parameter] = set()
    for path, module in modules.items():
        held = {*module.parameters(recurse=False)} - seen
        seen |= held
        if held:
            at(path).parameters += sum(parameter.numel() for parameter in held)
    for path, linear, own in operations(model, seq_len=seq_len):
        at(path).linear += linear
        at(path).own += own
    for path, own in measured.items():
        at(path).own += own
        at(path).measured += own
    for path in {_holder(path) for path in modules}:
        place = (_LAYER.sub("*", path), type(modules[path]).__name__)
        if place in costs:
            costs[place].count += 1
    order = [_LAYER.sub("*", _holder(path)) for path in modules]
    return sorted(costs.values(), key=lambda cost: order.index(cost.place))


def _holder(path: str) -> str:
    """The part that a module belongs to: what follows the number of a layer, or the name."""
    names = path.split(".")
    layer = next((i for i, name in enumerate(names) if name.isdecimal()), -1)
    return ".".join(names[: layer + 2])

"""What two built models compute differently: other parts, other numbers in them, other ties."""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

from torch import Tensor, nn

from fidgpt.interop.hugging_face.tensors import tensors_of
from fidgpt.model import Capacity, LoRALinear, StackedLoRA, dropless
from fidgpt.model.linear import Linear
from fidgpt.model.moe import SelectionBias

_ABSENT = "absent"
# What every module has, and what changes no number that a model computes outside of training.
_IGNORED = {*vars(nn.Module()), "dropout", "init", "kernel", "layout", "balancing"}
_IGNORED_OF = {LoRALinear: {"scale"}, SelectionBias: {"rate"}}
_LIKE = {LoRALinear: Linear, StackedLoRA: _ABSENT, Capacity: _ABSENT}


class Difference(NamedTuple):
    """A place where two models differ; `*` stands for every layer.

    Attributes:
      path: of a part, or of a value in it.
      ours: what the first model has there.
      theirs: what the second one has.
    """

    path: str
    ours: str
    theirs: str


def differences(ours: nn.Module, theirs: nn.Module) -> list[Difference]:
    """Where two models would compute differently with the same weights; empty if nowhere.

    Adapters are no difference: they stand beside what is compared. Sizes of parameters are.
    """
    found = [*_of_parts(ours, theirs)]
    told = tuple(f"{one.path}." for one in found)
    found += [one for one in _of_tensors(ours, theirs) if not one.path.startswith(told)]
    layers = len(getattr(ours, "blocks", ()))
    counts = Counter(_starred(one) for one in found)
    whole = {one for one, count in counts.items() if count == layers > 1}
    return [*dict.fromkeys(one if (all := _starred(one)) not in whole else all for one in found)]


def _starred(one: Difference) -> Difference:
    return one._replace(path=re.sub(r"(?<=^blocks\.)\d+(?=\.)", "*", one.path))


def _of_parts(ours: nn.Module, theirs: nn.Module) -> Iterator[Difference]:
    sides = [dict(side.named_modules(remove_duplicate=False)) for side in (ours, theirs)]
    told: set[str] = set()
    for path in {**sides[0], **sides[1]}:
        if path.rpartition(".")[0] in told:
            told.add(path)
            continue
        here, there = (side.get(path) for side in sides)
        kinds = [_kind(one) for one in (here, there)]
        if kinds[0] is not kinds[1]:
            told.add(path)
            yield Difference(path, *(_shown(kind) for kind in kinds))
        elif here is not None and there is not None:
            yield from _of_values(path, _values(here), _values(there))


def _kind(part: nn.Module | None) -> Any:
    kind = _ABSENT if part is None else type(part)
    return _LIKE.get(kind, kind)


def _values(part: nn.Module) -> dict[str, Any]:
    # Capacity, a part without weights, is dropless too outside of training.
    ignored = _IGNORED | _IGNORED_OF.get(type(part), set())
    return {
        name: value
        for name, value in vars(part).items()
        if name not in ignored and value is not dropless
    }


def _of_values(path: str, ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[Difference]:
    for name in {**ours, **theirs}:
        here, there = (side.get(name, _ABSENT) for side in (ours, theirs))
        is_part = {id(here), id(there)} == {id(None), id(_ABSENT)}  # which was told of
        if not is_part and not _alike(here, there):
            yield Difference(f"{path}.{name}".removeprefix("."), _shown(here), _shown(there))


def _of_tensors(ours: nn.Module, theirs: nn.Module) -> Iterator[Difference]:
    sides = [_tensors(side) for side in (ours, theirs)]
    for path in {**sides[0], **sides[1]}:
        here, there = (side.get(path, _ABSENT) for side in sides)
        if here != there:
            yield Difference(path, here, there)


def _tensors(model: nn.Module) -> dict[str, str]:
    """The shape of each tensor by its path, or the path under which it was met before."""
    first: dict[int, str] = {}
    found: dict[str, str] = {}
    for path, tensor in tensors_of(model).items():
        known = first.setdefault(id(tensor), path)
        found[path] = str(list(tensor.shape)) if known == path else f"tied to {known}"
    return found


def _alike(here: Any, there: Any) -> bool:
    """Whether two values mean the same; objects do by their class and all that they hold."""
    if isinstance(here, float) and isinstance(there, float):
        return math.isclose(here, there, rel_tol=1e-9)
    if type(here) is not type(there):
        return isinstance(here, int | float) and isinstance(there, int | float) and here == there
    if isinstance(here, list | tuple):
        return len(here) == len(there) and all(map(_alike, here, there))
    if isinstance(here, dict):
        return here.keys() == there.keys() and all(_alike(here[key], there[key]) for key in here)
    if isinstance(here, functools.partial):
        here, there = ((one.func, one.args, one.keywords) for one in (here, there))
        return all(map(_alike, here, there))
    if isinstance(here, Tensor):
        return here.shape == there.shape
    if isinstance(here, nn.Module):
        return not differences(here, there)
    if isinstance(here, type | FunctionType) or not hasattr(here, "__dict__"):
        return bool(here == there)
    return _alike(vars(here), vars(there))


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float | None):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    name = getattr(value, "__name__", None)
    held = getattr(value, "__dict__", {})
    inside = ", ".join(f"{key}={_shown(one)}" for key, one in held.items())
    return name or f"{type(value).__name__}({inside:.80})"

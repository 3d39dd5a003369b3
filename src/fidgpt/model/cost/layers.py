"""Layers that are alike cost alike: a deep model is measured on one of each kind."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

_PLAIN = (bool, int, float, str, bytes, type(None))
_OF_ITS_OWN = (type, FunctionType, BuiltinFunctionType, MethodType)  # alike is only the same one


def alike_layers(model: nn.Module) -> list[list[int]]:
    """The numbers of the model's blocks, those of one kind together; empty where it has no blocks.

    Two are alike where they are of the same classes with the same settings and shapes. What cannot
    be compared makes a difference.
    """
    kinds: dict[Hashable, list[int]] = {}
    for index, block in enumerate(_blocks(model)):
        kinds.setdefault(_nature(block), []).append(index)
    return [*kinds.values()]


def sum_over_layers(model: nn.Module, measure: Callable[[], int]) -> int:
    """What `measure` would give of the model, where each layer adds to it and alike ones equally.

    Args:
      model: what is measured, a copy that nobody else uses: it has few layers for a moment.
      measure: measures it as it is at the moment.
    """
    kinds = alike_layers(model)
    if 2 * len(kinds) >= len(_blocks(model)):
        return measure()
    firsts = [kind[0] for kind in kinds]
    with _only(model, firsts):
        total = measure()
    base = total
    for _, *others in kinds:
        if others:
            with _only(model, [*firsts, others[0]]):
                total += len(others) * (measure() - base)
    return total


@contextmanager
def first_of_each(model: nn.Module) -> Iterator[list[list[int]]]:
    """Inside, the model has one layer of each kind; gives the layers that each stands for."""
    kinds = alike_layers(model)
    with _only(model, [kind[0] for kind in kinds]):
        yield kinds


@contextmanager
def _only(model: nn.Module, layers: list[int]) -> Iterator[None]:
    if not layers:
        yield
        return
    blocks = _blocks(model)
    model.blocks = nn.ModuleList(blocks[index] for index in layers)
    try:
        yield
    finally:
        model.blocks = blocks


def _blocks(model: nn.Module) -> nn.ModuleList:
    blocks = getattr(model, "blocks", None)
    return blocks if isinstance(blocks, nn.ModuleList) else nn.ModuleList()


def _nature(value: Any) -> Hashable:
    """What is equal for things that cost the same."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.requires_grad
    if isinstance(value, nn.Module):
        return type(value), _nature(vars(value))
    if isinstance(value, partial):
        return value.func, _nature(value.args), _nature(value.keywords)
    if isinstance(value, dict):
        # Modules hold little but numbers and empty dicts, which need no call each.
        return tuple(
            (key, one)
            if isinstance(one, _PLAIN)
            else (key, () if isinstance(one, dict) and not one else _nature(one))
            for key, one in value.items()
        )
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_nature, value))
    if isinstance(value, set):
        return frozenset(value)
    if type(value).__hash__ is object.__hash__ and not isinstance(value, _OF_ITS_OWN):
        return type(value), _nature(getattr(value, "__dict__", id(value)))
    return value if isinstance(value, Hashable) else id(value)

"""Floating-point operations and parameters."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fidgpt.model.cache import Cache
from fidgpt.model.context import one_document
from fidgpt.model.embedding import Embedding, Unembedding
from fidgpt.model.linear import declared_flops
from fidgpt.model.positions import LearnedPositions
from fidgpt.model.transformer import LanguageModel

__all__ = [
    "TRAINING_PASSES",
    "ParameterCount",
    "PlaceCost",
    "alike_layers",
    "bytes_of",
    "cache_bytes",
    "cost_by_place",
    "count_parameters",
    "first_of_each",
    "flops_per_token",
    "shared_parameters",
    "undeclared_flops",
]

TRAINING_PASSES = 3  # the backward pass computes two products for each one of the forward


def flops_per_token(model: nn.Module, *, seq_len: int) -> int:
    """Return the forward operations per token of a sequence of `seq_len`.

    A multiply-add counts as two. Each Linear costs twice its weights; a module declares what it
    computes besides its Linears in a method `own_flops_per_token(seq_len)`, and a shared module
    counts at each of its places. Element-wise work is left out, as usual (Chowdhery et al., 2022,
    appendix B), and so is that of modules without a declaration: see `undeclared_flops`.

    A token of a causal attention counts the scores of all `seq_len` tokens, or of its window, and
    not only of those before it, as in PaLM, nanoGPT and torch's own counter. A mixture of experts
    counts those that a token is routed to.
    """
    modules = model.named_modules(remove_duplicate=False)
    return sum(sum(declared_flops(module, seq_len=seq_len)) for _, module in modules)


def undeclared_flops(model: LanguageModel, *, seq_len: int) -> dict[str, int]:
    """Return the forward operations per token that no module declares, by path.

    Torch counts the products of a pass over one sequence. Those in a Linear, or in a module with
    `own_flops_per_token` and all within it, are declared; the rest is returned, such as the
    products of a custom attention. Operations that torch has no formula for are not counted.

    Args:
      model: on the meta device, and used by nothing else.
      seq_len: tokens of the sequence.
    """
    with first_of_each(model) as kinds, torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, seq_len, dtype=torch.int64, device="meta"))
        inclusive = {
            name.partition(".")[2]: sum(operations.values())
            for name, operations in counter.get_flop_counts().items()
            if name != "Global"
        }
        own = Counter(inclusive)
        for path, count in inclusive.items():
            parent = path
            while parent:  # up to the innermost module around it that was called too
                parent = parent.rpartition(".")[0]
                if parent in inclusive:
                    own[parent] -= count
                    break
        own = {
            path: count // seq_len for path, count in own.items() if not _is_declared(model, path)
        }
    layers = {f"blocks.{number}": kind for number, kind in enumerate(kinds)}
    return {
        place + path.removeprefix(layer): count
        for path, count in own.items()
        if count > 0
        for layer in [".".join(path.split(".")[:2])]
        for place in ([f"blocks.{i}" for i in layers[layer]] if layer in layers else [layer])
    }


def _is_declared(model: nn.Module, path: str) -> bool:
    """Whether a module or one around it, except the model itself, declares what it computes."""
    names = path.split(".")
    around = (model.get_submodule(".".join(names[: i + 1])) for i in range(len(names)))
    is_linear = isinstance(model.get_submodule(path), nn.Linear)
    return is_linear or any(hasattr(module, "own_flops_per_token") for module in around)


_PLAIN = (bool, int, float, str, bytes, type(None))
_BY_IDENTITY = (type, FunctionType, BuiltinFunctionType, MethodType)


def alike_layers(model: nn.Module) -> list[list[int]]:
    """Return the indices of the model's blocks, grouped by kind; empty without blocks.

    Blocks of one kind have the same classes, settings and shapes. What cannot be compared makes a
    difference.
    """
    kinds: dict[Hashable, list[int]] = {}
    for index, block in enumerate(_blocks(model)):
        kinds.setdefault(_structure(block), []).append(index)
    return [*kinds.values()]


def sum_over_layers(model: nn.Module, measure: Callable[[], int]) -> int:
    """Return what `measure` gives for the model, measuring layers of one kind once.

    Args:
      model: used by nothing else, since it has fewer layers while it is measured.
      measure: measures the model as it is when called.
    """
    kinds = alike_layers(model)
    if 2 * len(kinds) >= len(_blocks(model)):
        return measure()
    firsts = [kind[0] for kind in kinds]
    with _only(model, firsts):
        total = base = measure()
    for _, *others in kinds:
        if others:
            with _only(model, [*firsts, others[0]]):
                total += len(others) * (measure() - base)
    return total


@contextmanager
def first_of_each(model: nn.Module) -> Iterator[list[list[int]]]:
    """Reduce the model to one layer of each kind; yield the layers that each stands for."""
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


def _structure(value: Any) -> Hashable:
    """Return a key that is equal for values that cost the same."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.requires_grad
    if isinstance(value, partial):
        return value.func, _structure(value.args), _structure(value.keywords)
    if isinstance(value, dict):
        return tuple((key, _structure(one)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_structure, value))
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, nn.Module) or (
        type(value).__hash__ is object.__hash__ and not isinstance(value, _BY_IDENTITY)
    ):
        return type(value), _structure(getattr(value, "__dict__", id(value)))
    return value if isinstance(value, Hashable) else id(value)


_LAYER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(kw_only=True)
class PlaceCost:
    """The cost of the modules of one class at one place of every layer.

    Attributes:
      place: their path, with `*` for the index of the layer: `blocks.*.attention`.
      kind: their class.
      count: how many there are.
      parameters: of them; shared ones count at their first place.
      linear: forward operations per token in Linears.
      own: the others: scores and weighted values of attentions, experts of mixtures.
      measured: how many of `own` are not declared but were counted by torch.
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
        """Forward operations per token."""
        return self.linear + self.own


def cost_by_place(
    model: nn.Module, *, seq_len: int, measured: Mapping[str, int]
) -> list[PlaceCost]:
    """Return the cost of everything in the model, in its order.

    Args:
      model: may be on the meta device.
      seq_len: tokens of a sequence.
      measured: what `undeclared_flops` returned.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    costs: dict[tuple[str, str], PlaceCost] = {}
    seen: set[nn.Parameter] = set()
    for path, module in modules.items():
        # Costs belong to what follows the index of a layer, or to a child of the model.
        names = path.split(".")
        layer = next((i for i, name in enumerate(names) if name.isdecimal()), -1)
        holder = ".".join(names[: layer + 2])
        place, kind = _LAYER.sub("*", holder), type(modules[holder]).__name__
        cost = costs.setdefault((place, kind), PlaceCost(place=place, kind=kind))
        cost.count += path == holder
        held = {*module.parameters(recurse=False)} - seen
        seen |= held
        cost.parameters += sum(parameter.numel() for parameter in held)
        linear, own = declared_flops(module, seq_len=seq_len)
        cost.linear += linear
        cost.own += own + measured.get(path, 0)
        cost.measured += measured.get(path, 0)
    order = [place for place, _ in costs]
    found = (cost for cost in costs.values() if cost.parameters or cost.flops)
    return sorted(found, key=lambda cost: order.index(cost.place))


@torch.no_grad()
def cache_bytes(model: LanguageModel, *, context: int) -> int:
    """Return the bytes of a KV cache for one text of up to `context` tokens.

    Args:
      model: on the meta device, in the number format that it generates in, used by nothing else.
      context: tokens of prompt and continuation together.
    """
    tokens = torch.zeros(1, 1, dtype=torch.int64, device="meta")

    def allocated() -> int:
        cache = Cache(capacity=context)
        model.features(tokens, replace(one_document(tokens), cache=cache))
        return cache.bytes()

    return sum_over_layers(model, allocated)


_TABLES = (Embedding, Unembedding, LearnedPositions, nn.Embedding)


@dataclass(frozen=True)
class ParameterCount:
    """Counts of parameters; a shared one counts once.

    Attributes:
      total: all of them.
      active: those that compute one token: all but the experts that it is not routed to.
      embedding: those of the tables of tokens and positions.
    """

    total: int
    active: int
    embedding: int

    @property
    def without_embedding(self) -> int:
        """What scaling laws count (Kaplan et al., 2020, arXiv:2001.08361, section 2.1)."""
        return self.total - self.embedding


def count_parameters(model: nn.Module) -> ParameterCount:
    """Count parameters; modules declare what a token does not use in `own_idle_parameters`."""
    total = sum(parameter.numel() for parameter in model.parameters())
    tables = {
        parameter
        for module in model.modules()
        if isinstance(module, _TABLES)
        for parameter in module.parameters(recurse=False)
    }
    idle = sum(getattr(module, "own_idle_parameters", int)() for module in model.modules())
    return ParameterCount(total, total - idle, sum(table.numel() for table in tables))


def shared_parameters(model: nn.Module) -> dict[str, list[str]]:
    """Return the other names of each parameter that several modules hold, by its first name."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {first: others for first, *others in names.values() if others}


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the memory of some tensors; views of the same memory count once."""
    storages = {tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages)

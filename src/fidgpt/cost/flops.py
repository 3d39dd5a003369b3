"""Floating-point operations and parameters."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fidgpt.model.cache import Cache
from fidgpt.model.context import one_document
from fidgpt.model.embedding import Embedding, Unembedding
from fidgpt.model.linear import declared_flops
from fidgpt.model.positions import LearnedPositions
from fidgpt.model.transformer import LanguageModel

TRAINING_PASSES = 3  # the backward pass computes two products for each one of the forward


class Operations(NamedTuple):
    """What one module computes for a token.

    Attributes:
      path: of the module, as in `named_modules`.
      linear: floating-point operations of a Linear's product with its weight.
      own: what it computes besides, as its `own_flops_per_token` says.
    """

    path: str
    linear: int
    own: int


def operations(model: nn.Module, *, seq_len: int) -> Iterator[Operations]:
    """Every module that computes; one that several places hold comes at each."""
    for path, module in model.named_modules(remove_duplicate=False):
        linear, own = declared_flops(module, seq_len=seq_len)
        if linear or own:
            yield Operations(path, linear, own)


def flops_per_token(model: nn.Module, *, seq_len: int) -> int:
    """Floating-point operations of the forward pass for one token of a sequence of `seq_len`.

    A multiply-add counts as two. Each Linear costs twice its weights; a part adds what it computes
    beside its Linears by a method `own_flops_per_token(seq_len)`, and a part that several places
    hold counts at each. Element-wise work is left out, as the field's figures do (Chowdhery et
    al., 2022, appendix B), and so is that of parts which say nothing: see `unsaid_flops`.

    A token of a causal attention counts the scores of all `seq_len` tokens, or of its window, and
    not only of those before it: PaLM, nanoGPT and torch's own counter do so too. A mixture of
    experts counts those that a token goes to.
    """
    return sum(linear + own for _, linear, own in operations(model, seq_len=seq_len))


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


@torch.no_grad()
def cache_bytes(model: LanguageModel, *, context: int) -> int:
    """Memory of the cache of one text with room for `context` tokens, as its parts ask for it.

    Args:
      model: on the meta device, in the number format that it generates in, used by nobody else.
      context: tokens of the prompt and of what is written, together.
    """
    tokens = torch.zeros(1, 1, dtype=torch.int64, device="meta")

    def asked_for() -> int:
        cache = Cache(capacity=context)
        model.features(tokens, replace(one_document(tokens), cache=cache))
        return cache.bytes()

    return sum_over_layers(model, asked_for)


_TABLES = (Embedding, Unembedding, LearnedPositions, nn.Embedding)


@dataclass(frozen=True)
class ParameterCount:
    """Numbers to learn; one that several modules hold counts once.

    Attributes:
      total: all of them.
      active: those that one token is computed with: all but the experts that it does not go to.
      embedding: those of the tables of tokens and positions, by which tokens are read or scored.
    """

    total: int
    active: int
    embedding: int

    @property
    def without_embedding(self) -> int:
        """What scaling laws count (Kaplan et al., 2020, arXiv:2001.08361, section 2.1)."""
        return self.total - self.embedding


def count_parameters(model: nn.Module) -> ParameterCount:
    """Counts a model; parts say by `own_idle_parameters()` how many a token has no use for."""
    total = sum(parameter.numel() for parameter in model.parameters())
    tables = {
        parameter
        for module in model.modules()
        if isinstance(module, _TABLES)
        for parameter in module.parameters(recurse=False)
    }
    says = (getattr(module, "own_idle_parameters", None) for module in model.modules())
    idle = sum(say() for say in says if say is not None)
    return ParameterCount(
        total=total, active=total - idle, embedding=sum(table.numel() for table in tables)
    )


def shared_parameters(model: nn.Module) -> dict[str, list[str]]:
    """Every parameter that more than one module holds: its name, and the names it has besides."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {first: others for first, *others in names.values() if others}


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Memory of some tensors; those that are views of one memory count it once."""
    storages = {tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages)

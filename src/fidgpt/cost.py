"""What a model costs: operations, parameters and memory, declared by its modules or measured.

Nothing here needs the model's memory: it may be on the meta device, and of any size.
"""

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fidgpt.declarations import CostlyModule, SparseModule
from fidgpt.model.cache import Cache
from fidgpt.model.context import one_document
from fidgpt.model.embedding import Embedding, Unembedding
from fidgpt.model.linear import declared_flops, flops_per_token
from fidgpt.model.positions import LearnedPositions
from fidgpt.model.quantized import NF4Weight
from fidgpt.model.transformer import LanguageModel, Transformer

TRAINING_PASSES = 3  # the backward pass computes two products for each one of the forward


# Raised by components that read values of tensors on the meta device.
NEEDS_NUMBERS = (RuntimeError, TypeError, ValueError)
T = TypeVar("T")


def measured_or_none(measure: Callable[[], T]) -> T | None:
    """Return what a function measures; None if it needs the values of tensors."""
    try:
        return measure()
    except NEEDS_NUMBERS:
        return None


def measured_flops(model: LanguageModel, *, seq_len: int) -> dict[str, int] | None:
    """Return the FLOPs of modules that do not declare them; None if the model needs values."""
    classes = {type(module).__module__ for module in model.modules()}
    if all(name.startswith(("fidgpt.model.", "torch.nn.")) for name in classes):
        return {}  # ours declare theirs, and torch takes a second to load its counter's modules
    return measured_or_none(lambda: undeclared_flops(without_memory(model), seq_len=seq_len))


def forward_flops(model: LanguageModel, *, seq_len: int) -> int:
    """Return the forward operations per token that modules declare, or that torch counts."""
    measured = measured_flops(model, seq_len=seq_len) or {}
    return flops_per_token(model, seq_len=seq_len) + sum(measured.values())


def undeclared_flops(model: LanguageModel, *, seq_len: int) -> dict[str, int]:
    """Return the forward operations per token that no module declares, by path.

    Torch counts the products of a pass over one sequence. Those in a Linear, or in a module with
    `own_flops_per_token` and all within it, are declared; the rest is returned, such as the
    products of a custom attention. Operations that torch has no formula for are not counted.

    Args:
      model: on the meta device, and used by nothing else.
      seq_len: tokens of the sequence.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
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
    return {
        path: count // seq_len
        for path, count in own.items()
        if count >= seq_len and not _is_declared(model, path)
    }


def _is_declared(model: nn.Module, path: str) -> bool:
    """Whether a module or one around it, except the model itself, declares what it computes."""
    names = path.split(".")
    around = (model.get_submodule(".".join(names[: i + 1])) for i in range(len(names)))
    is_linear = isinstance(model.get_submodule(path), nn.Linear)
    return is_linear or any(isinstance(module, CostlyModule) for module in around)


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
        cost.parameters += sum(parameter.numel() for parameter in held) + _quantized(module)
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
    tokens, cache = torch.zeros(1, 1, dtype=torch.int64, device="meta"), Cache(capacity=context)
    model.features(tokens, replace(one_document(tokens), cache=cache))
    return cache.bytes()


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
    total += sum(map(_quantized, model.modules()))
    tables = {
        parameter
        for module in model.modules()
        if isinstance(module, _TABLES)
        for parameter in module.parameters(recurse=False)
    }
    sparse = [module for module in model.modules() if isinstance(module, SparseModule)]
    idle = sum(module.own_idle_parameters() for module in sparse)
    return ParameterCount(total, total - idle, sum(table.numel() for table in tables))


def _quantized(module: nn.Module) -> int:
    """Return how many weights a module holds as codes, which are not among its parameters."""
    return math.prod(module.shape) if isinstance(module, NF4Weight) else 0


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


def tensors_in(values: Iterable[object]) -> Iterator[Tensor]:
    """Yield every tensor in nested dicts and lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict | list | tuple):
            yield from tensors_in(value.values() if isinstance(value, dict) else value)


Model = TypeVar("Model", bound=nn.Module)
# Limits of what runs on real zeros: torch takes a second to load what the meta device needs.
_SMALL_RUN, _SMALL_MODEL = 1e10, 5e7  # operations; parameters


def without_memory(model: Model) -> Model:
    """Return a copy of a model on the meta device, with the same ties."""
    # torch.empty_like of a meta tensor imports sympy.
    return copied(model, lambda one: torch.empty(one.shape, dtype=one.dtype, device="meta"))


def with_zeros(model: Model, *, num_tokens: int, device: torch.device) -> Model | None:
    """Return a copy full of zeros, with the same ties; None if that, or a pass, would take long.

    Args:
      model: may be on the meta device.
      num_tokens: of the forward pass that is to be tried.
      device: where the model would compute; only a CPU computes as it would there.
    """
    size = sum(parameter.numel() for parameter in model.parameters())
    if device.type != "cpu" or size > _SMALL_MODEL or 2 * size * num_tokens > _SMALL_RUN:
        return None
    return copied(model, lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))


def rehearsed(
    models: Sequence[LanguageModel], *, num_tokens: int, device: torch.device
) -> list[LanguageModel]:
    """Return copies full of zeros, as by `with_zeros`, or all of them without memory."""
    twins = [with_zeros(one, num_tokens=num_tokens, device=device) for one in models]
    zeros = [twin for twin in twins if twin is not None]
    return zeros if len(zeros) == len(models) else [without_memory(one) for one in models]


def copied(model: Model, make: Callable[[Tensor], Tensor]) -> Model:
    """Return a copy whose tensors are what `make` returns for those of a model, tied alike."""
    copies: dict[int, Tensor] = {
        id(one): nn.Parameter(make(one), one.requires_grad) for one in model.parameters()
    }
    copies |= {id(buffer): make(buffer) for buffer in model.buffers()}
    return copy.deepcopy(model, copies)


def kind_of(module: nn.Module) -> str:
    """Return a text that modules of one structure share: classes, hooks, shapes and training."""
    shapes = [(name, tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()]
    hooks = ("_forward_pre_hooks", "_forward_hooks")  # as of the last layer that is split
    kinds = [
        (str(type(each)), *(len(vars(each)[name]) for name in hooks)) for each in module.modules()
    ]
    return repr((kinds, shapes))


@contextmanager
def one_block_of_each_kind(model: nn.Module) -> Iterator[dict[str, list[int]]]:
    """Let a transformer have one block of each kind, under its name, inside the context.

    It has all of them if it changes how they are called.

    Yields:
      The layers of the kind of each; empty for other models, which stay whole.
    """
    if not isinstance(model, Transformer) or type(model).features is not Transformer.features:
        yield {}
        return
    kind = kind_of if type(model).layers is Transformer.layers else id
    blocks, indices = model.blocks, dict[str | int, list[int]]()
    for index, block in enumerate(blocks):
        indices.setdefault(kind(block), []).append(index)
    model.blocks = nn.ModuleList()
    for first, *_ in indices.values():
        model.blocks.add_module(str(first), blocks[first])
    try:
        yield {str(own[0]): own for own in indices.values()}
    finally:
        model.blocks = blocks

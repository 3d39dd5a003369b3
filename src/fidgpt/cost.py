"""What a model costs: operations, parameters and memory, counted as one of its passes is executed.

Nothing here needs the model's memory: it may be on the meta device, and of any size.
"""

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from fidgpt.declarations import SparseModule
from fidgpt.model.cache import Cache
from fidgpt.model.context import one_document
from fidgpt.model.embedding import Embedding, Unembedding
from fidgpt.model.positions import LearnedPositions
from fidgpt.model.quantized import NF4Weight
from fidgpt.model.transformer import LanguageModel, Transformer
from fidgpt.model.wrappers import Compiled
from fidgpt.recording import Amounts, Recorder, fused_operations, plan_kernels

TRAINING_PASSES = 3  # the backward pass computes two products for each one of the forward


# Raised by components that read values of tensors on the meta device.
NEEDS_NUMBERS = (RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Flops(Amounts):
    """Forward operations per token; a multiply-add is two.

    Attributes:
      products: of matrix products.
      attention: of scores and weighted values of the keys that a causal query sees.
    """

    products: float = 0.0
    attention: float = 0.0

    @property
    def total(self) -> int:
        """All of them."""
        return round(self.products + self.attention)


@dataclass(frozen=True)
class ForwardPass:
    """What the forward pass of a model in training computes for each token.

    Attributes:
      places: operations at the places of one layer of each kind, and outside of layers, by path.
      kinds: by the name of a block, the layers of its kind.
      is_executed: whether they were counted; else a weight costs a multiply-add.
    """

    places: Mapping[str, Flops]
    kinds: Mapping[str, Sequence[int]]
    is_executed: bool = True

    def times(self, path: str) -> int:
        """Return how many layers a place stands for."""
        return len(self.kinds.get(path.removeprefix("blocks.").partition(".")[0], (0,)))

    def under(self, path: str) -> float:
        """Return the operations of a module and all in it."""
        inside = (place for place in self.places if f"{place}.".startswith(f"{path}."))
        return float(sum(self.places[place].total for place in inside))

    @cached_property
    def layers(self) -> list[float]:
        """The operations of each layer."""
        costs = {
            layer: self.under(f"blocks.{name}")
            for name, layers in self.kinds.items()
            for layer in layers
        }
        return [costs[layer] for layer in sorted(costs)]

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The operations before all layers, and those after them."""
        first = self.under("embedding")
        return first, self.total - sum(self.layers) - first

    @cached_property
    def total(self) -> int:
        """The operations of the model."""
        return sum(self.times(path) * flops.total for path, flops in self.places.items())


def forward_pass(model: LanguageModel, *, seq_len: int) -> ForwardPass:
    """Count the forward operations per token of a sequence of `seq_len`.

    One layer of each kind is executed, without memory or on zeros, and what it multiplies is
    counted. Element-wise work is left out, as usual (Chowdhery et al., 2022, arXiv:2204.02311,
    appendix B). A mixture of experts counts those that a token is routed to.
    """
    with one_block_of_each_kind(model) as kinds:
        try:
            places = _executed(model, seq_len)
        except NEEDS_NUMBERS:
            return ForwardPass(_assumed(model), kinds, is_executed=False)
    return ForwardPass(places, kinds)


@torch.no_grad()
def _executed(model: LanguageModel, seq_len: int) -> dict[str, Flops]:
    is_compiled = any(isinstance(module, Compiled) for module in model.modules())
    on = torch.device("meta" if is_compiled else "cpu")
    (twin,) = rehearsed([model], num_tokens=seq_len, device=on)
    plan_kernels(twin)
    recorder, around = Recorder([*twin.parameters(), *twin.buffers()]), [""]

    def enter(path: str, *_: object) -> None:
        around.append(path)
        recorder.enter(path)

    def leave(*_: object) -> None:
        around.pop()
        recorder.enter(around[-1])

    for path, module in twin.named_modules():
        if path == place_of(path):
            module.register_forward_pre_hook(partial(enter, path))
            module.register_forward_hook(leave)
    device = next(twin.parameters()).device
    with fused_operations(), recorder:
        twin.train()(torch.zeros(1, seq_len, dtype=torch.int64, device=device))
    attention = {path: sum(work.attention.values()) for path, work in recorder.sections.items()}
    return {
        path: Flops((work.flops - attention[path]) / seq_len, attention[path] / seq_len)
        for path, work in recorder.sections.items()
        if work.flops
    }


def _assumed(model: nn.Module) -> dict[str, Flops]:
    """Return a multiply-add for each weight that a token is multiplied by."""
    costs = Counter[str]()
    for path, module in model.named_modules():
        if isinstance(module, Unembedding) or not isinstance(module, _TABLES):
            own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
            idle = module.own_idle_parameters() if isinstance(module, SparseModule) else 0
            costs[place_of(path)] += 2 * (own - idle)
    return {path: Flops(count) for path, count in costs.items()}


def place_of(path: str) -> str:
    """Return the path at which a module's cost is counted: a child of a layer, or of the model."""
    names = path.split(".")
    layer = next((i for i, name in enumerate(names) if name.isdecimal()), -1)
    return ".".join(names[: layer + 2])


_LAYER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(kw_only=True)
class PlaceCost:
    """The cost of the modules of one class at one place of every layer.

    Attributes:
      place: their path, with `*` for the index of the layer: `blocks.*.attention`.
      kind: their class.
      count: how many there are.
      parameters: of them; shared ones count at their first place.
      flops: forward operations per token.
    """

    place: str
    kind: str
    count: int = 0
    parameters: int = 0
    flops: Flops = Flops()


def cost_by_place(model: nn.Module, passed: ForwardPass) -> list[PlaceCost]:
    """Return the cost of everything in the model, in its order."""
    modules = dict(model.named_modules(remove_duplicate=False))
    costs: dict[tuple[str, str], PlaceCost] = {}
    seen: set[nn.Parameter] = set()

    def cost_at(path: str) -> PlaceCost:
        place, kind = _LAYER.sub("*", path), type(modules[path]).__name__
        return costs.setdefault((place, kind), PlaceCost(place=place, kind=kind))

    for path, module in modules.items():
        cost = cost_at(place_of(path))
        cost.count += path == place_of(path)
        held = {*module.parameters(recurse=False)} - seen
        seen |= held
        cost.parameters += sum(parameter.numel() for parameter in held) + _quantized(module)
    for path, flops in passed.places.items():
        cost_at(path).flops += flops.times(passed.times(path))
    order = [place for place, _ in costs]
    listed = (cost for cost in costs.values() if cost.parameters or cost.flops.total)
    return sorted(listed, key=lambda cost: order.index(cost.place))


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
      embedding: parameters of the tables of tokens and positions.
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
    return copied(model, lambda x: torch.empty(x.shape, dtype=x.dtype, device="meta"))


def rehearsed(
    models: Sequence[LanguageModel], *, num_tokens: int, device: torch.device
) -> list[LanguageModel]:
    """Return copies full of zeros, with the same ties; without memory if a pass would take long.

    Args:
      models: may be on the meta device.
      num_tokens: of the forward pass that is to be tried.
      device: where the models would compute; only a CPU computes as it would there.
    """
    size = max(sum(parameter.numel() for parameter in model.parameters()) for model in models)
    if device.type != "cpu" or size > _SMALL_MODEL or 2 * size * num_tokens > _SMALL_RUN:
        return [without_memory(model) for model in models]
    return [copied(model, lambda x: torch.zeros(x.shape, dtype=x.dtype)) for model in models]


def copied(model: Model, make: Callable[[Tensor], Tensor]) -> Model:
    """Return a copy of a model with tensors that `make` returns for the model's, tied alike."""
    copies = {id(buffer): make(buffer) for buffer in model.buffers()}
    for parameter in model.parameters():
        copies[id(parameter)] = nn.Parameter(make(parameter), parameter.requires_grad)
        vars(copies[id(parameter)]).update(vars(parameter))  # such as its `init`
    return copy.deepcopy(model, copies)


def kind_of(module: nn.Module) -> str:
    """Return a text that modules of one structure share: classes, hooks, sizes and training."""
    shapes = [(name, tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()]
    hooks = ("_forward_pre_hooks", "_forward_hooks")  # as of the last layer that is split
    kinds = [
        (
            str(type(each)),
            *(len(vars(each)[name]) for name in hooks),
            # As the window of an attention.
            [(name, x) for name, x in vars(each).items() if isinstance(x, int | None)],
        )
        for each in module.modules()
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

"""What is known of a run before its first step: its size, its cost and what it needs."""

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from fidgpt.cost import ParameterCount, PlaceCost, cache_bytes, undeclared_flops, without_memory
from fidgpt.model.transformer import LanguageModel
from fidgpt.optim.groups import Grouping, train_only
from fidgpt.train.footprint import NEEDS_NUMBERS, Footprint
from fidgpt.train.precision import Precision
from fidgpt.train.step import peak_rate

__all__ = ["Facts"]

_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
Trainable = Callable[[str, nn.Parameter], bool]


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """A group of parameters.

    Attributes:
      name: of the group; its index if it has none.
      learning_rate: at the peak of the schedule; None if the optimizer has none.
      weight_decay: None if the optimizer has none.
      settings: every setting that is a number.
      num_tensors: parameter tensors.
      num_parameters: elements of them.
      holds: the parameters' names, shortened as by `in_short`.
    """

    name: str
    learning_rate: float | None
    weight_decay: float | None
    settings: Mapping[str, float]
    num_tensors: int
    num_parameters: int
    holds: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What will run.

    Attributes:
      parameters: of the model, a tied one counted once.
      trained_parameters: those that are trained.
      active_parameters: those that one token is computed with.
      shared: names of parameters that several modules hold, with their other names.
      flops_per_token: floating-point operations of a training step, per token.
      tokens: of the whole run.
      num_steps: optimizer steps of the whole run.
      tokens_per_step: tokens of a step with a full batch, over all processes.
      device: of this process.
      world_size: processes.
      precision: name of the class that sets the number format.
      peak_flops: peak performance of all devices in that format, per second.
      memory: what each device needs.
      memory_there: bytes that each device has; None if unknown.
      weights: what initialises the model; None if its weights are random.
      evaluators: names of the evaluators.
    """

    parameters: int
    trained_parameters: int
    active_parameters: int
    shared: Mapping[str, list[str]]
    flops_per_token: int
    tokens: int
    num_steps: int
    tokens_per_step: int
    device: torch.device
    world_size: int
    precision: str
    peak_flops: float
    memory: Footprint
    memory_there: int | None = None
    weights: str | None = None
    evaluators: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The facts of a run, and where its cost is.

    Attributes:
      facts: what every run shows.
      parameters: by how they are used.
      places: the cost of a token's forward pass, by place.
      runs_without_memory: whether the model could be run on the meta device to measure it.
      cache: bytes of the KV cache of one token and of a training sequence, and the tokens of that;
        None if the model needs the values of its tensors.
      groups: of parameters, as the optimizer treats them.
    """

    facts: Facts
    parameters: ParameterCount
    places: Sequence[PlaceCost]
    runs_without_memory: bool
    cache: tuple[int, int, int] | None
    groups: Sequence[GroupFacts]


def measured_flops(model: LanguageModel, *, seq_len: int) -> dict[str, int] | None:
    """Return the FLOPs of modules that do not declare them; None if the model needs values."""
    classes = {type(module).__module__ for module in model.modules()}
    if all(name.startswith(("fidgpt.model.", "torch.nn.")) for name in classes):
        return {}  # ours declare theirs, and torch takes a second to load its counter's modules
    try:
        return undeclared_flops(without_memory(model), seq_len=seq_len)
    except NEEDS_NUMBERS:
        return None


def cache_sizes(
    model: LanguageModel, precision: Precision, *, seq_len: int
) -> tuple[int, int, int] | None:
    """Return the `cache` of a `Summary`."""
    replica = precision.replica(without_memory(model)).eval()
    try:
        token, context = (cache_bytes(replica, context=count) for count in (1, seq_len))
        return token, context, seq_len
    except NEEDS_NUMBERS:
        return None


def call_text(function: Callable[..., object]) -> str:
    """Write a function and its bound arguments as a call."""
    if isinstance(function, partial):
        bound = ", ".join(f"{name}={value!r}" for name, value in function.keywords.items())
        return f"{call_text(function.func)}({bound})"
    return getattr(function, "__name__", type(function).__name__)


def tokens_text(facts: Facts) -> str:
    """Write the tokens of a run and of its steps, whose batches may grow."""
    even = facts.tokens == facts.num_steps * facts.tokens_per_step
    steps = f"{facts.num_steps:,} steps of {'' if even else 'up to '}{facts.tokens_per_step:,}"
    return f"{facts.tokens:,} = {steps}" if even else f"{facts.tokens:,} in {steps}"


def trainable_copy(model: nn.Module, trainable: Trainable | None) -> nn.Module:
    """Return a copy of the model on the meta device with `requires_grad` as the run sets it."""
    copy = without_memory(model)
    train_only(copy, trainable)
    return copy


def parameter_groups(
    model: nn.Module,
    *,
    groups: Grouping,
    optimizer: Callable[..., Optimizer],
    trainable: Trainable | None,
) -> list[GroupFacts]:
    """Return the groups of a run.

    Args:
      model: may be on the meta device, and is left unchanged.
      groups: splits the parameters into groups.
      optimizer: makes the optimizer from the groups.
      trainable: whether a parameter is trained, by its name; None keeps its `requires_grad`.
    """
    model = trainable_copy(model, trainable)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    layers = _layers_by_pattern(names.values())
    found = groups(model)
    with contextlib.suppress(*NEEDS_NUMBERS):  # without the optimizer's defaults then
        found = optimizer(found).param_groups
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
            num_tensors=len(group["params"]),
            num_parameters=sum(parameter.numel() for parameter in group["params"]),
            holds=in_short([names[id(p)] for p in group["params"]], layers),
        )
        for number, group in enumerate(found)
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
        parent, _, own = module.rpartition(".")
        siblings[parent, leaf].append(own)
    texts = []
    for (parent, leaf), own in siblings.items():
        together = own[0] if len(own) == 1 else f"{{{','.join(own)}}}"
        texts.append(".".join(part for part in (parent, together, leaf) if part))
    return ", ".join(texts)


def _layers_by_pattern(names: Iterable[str]) -> dict[str, set[int]]:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for name in names:
        number = _LAYER.search(name)
        found[_LAYER.sub("*", name, count=1)] |= {int(number[0])} if number else set()
    return found


def _ranges(numbers: list[int]) -> str:
    """Write `[0, 1, 2, 5]` as `{0..2,5}`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
    return texts[0] if len(numbers) == 1 else f"{{{','.join(texts)}}}"

"""Settings that leave a run as it is."""

import inspect
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.compose.composition import Composition
from fidgpt.data import Stage
from fidgpt.graph.hints import computed
from fidgpt.graph.walk import Node, parts
from fidgpt.model import Transformer
from fidgpt.optim import (
    Constant,
    CosineDecay,
    LinearDecay,
    Phases,
    ScheduleFreeAdamW,
    WarmupCosine,
    WarmupStableDecay,
)
from fidgpt.train import MemorySnapshot, Profiler

_BEGIN_LATER = (MemorySnapshot, Profiler, Stage)
_DECAYING: set[Any] = {WarmupCosine, WarmupStableDecay, CosineDecay, LinearDecay}
_STEPS = dict.fromkeys((Constant, WarmupCosine, WarmupStableDecay), ("warmup_steps",))
_WARMUPS: dict[Any, tuple[str, ...]] = {Phases: ("warmup",), **_STEPS}


def without_effect(composition: Composition) -> list[str]:
    """Return a sentence for each setting that leaves a run as it is.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    cfg = composition.resolved.bound
    calls = [(node, fdl.get_callable(node.value)) for node in parts(cfg)]
    return [*_unreached(cfg, calls), *_unused_blocks(calls)]


Calls = list[tuple[Node, Any]]


def _unreached(cfg: fdl.Buildable, calls: Calls) -> Iterator[str]:
    """Yield a sentence for each setting that a run of this length and form does not use."""

    def number(part: Any, name: str) -> int:
        value = computed(getattr(part, name, None))
        return value if isinstance(value, int) else 0

    num_steps = number(cfg, "num_steps")
    shares = (getattr(node.value, "warmup", None) for node, kind in calls if kind is Phases)
    warmups = [num_steps for share in shares if isinstance(share, float) and share >= 1]
    warmups += [number(node.value, name) for node, kind in calls for name in _WARMUPS.get(kind, ())]
    if warmups and max(warmups) >= num_steps > 0:
        yield f"a warm-up of {max(warmups)} steps takes the whole run, of {num_steps=}."
    for node, kind in calls:
        if kind in _BEGIN_LATER and (begin := number(node.value, "begin")) > num_steps > 0:
            yield f"{node.path} begins at step {begin}, after the end of the run, at {num_steps=}."
    kinds = {kind for _, kind in calls}
    if ScheduleFreeAdamW in kinds and getattr(cfg, "average", None) is not None:
        yield (
            "schedule-free AdamW averages weights itself, and the average of those is evaluated: "
            "leave out one of them."
        )
    if ScheduleFreeAdamW in kinds and _DECAYING & kinds:
        yield "schedule-free AdamW takes the place of a decaying rate: add fiddler:use_constant."


def _unused_blocks(calls: Calls) -> Iterator[str]:
    """Yield a sentence for each model with more blocks than layers."""
    for node, kind in calls:
        if inspect.isclass(kind) and issubclass(kind, Transformer):
            depth, blocks = computed(node.value.num_layers), node.value.blocks
            if isinstance(depth, int) and isinstance(blocks, list | tuple) and len(blocks) > depth:
                yield (
                    f"only the first {depth} of the {len(blocks)} blocks of a model make layers, "
                    f"as its num_layers is {depth}. Set the depth before fiddler:unroll."
                )

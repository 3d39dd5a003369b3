"""Settings that leave a run as it is, or that change more than they say."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt import model, optim
from fidgpt.compose.composition import Composition
from fidgpt.data import Stage
from fidgpt.graph.binding import numbers_in
from fidgpt.graph.fiddle import repeats_of, set_arguments
from fidgpt.graph.hints import computed
from fidgpt.graph.paths import find_parameter
from fidgpt.graph.walk import Node, join, parts, step_to
from fidgpt.parallel import Mesh, MeshParallel, SequenceParallel, TensorParallel, UlyssesContext
from fidgpt.train import MemorySnapshot, Profiler

_AXES, _TENSOR = ("context", "tensor", "shard"), (TensorParallel, SequenceParallel)
_SPANS: dict[Any, str] = {
    **dict.fromkeys((model.Attention, model.LateNormAttention, model.LatentAttention), "window"),
    **dict.fromkeys((model.Chunk, model.Window), "size"),
}
_BEGIN_LATER = (MemorySnapshot, Profiler, Stage)
_DECAYING: set[Any] = {
    optim.WarmupCosine,
    optim.WarmupStableDecay,
    optim.CosineDecay,
    optim.LinearDecay,
}
_STEPS = dict.fromkeys(
    (optim.Constant, optim.WarmupCosine, optim.WarmupStableDecay), ("warmup_steps",)
)
_WARMUPS: dict[Any, tuple[str, ...]] = {optim.Phases: ("warmup",), **_STEPS}


def without_effect(composition: Composition) -> list[str]:
    """Return a sentence for each setting that leaves a run as it is, or widens attention.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    held = parts(composition.resolved.bound)
    unreached = _unreached(composition.resolved.bound, held)
    others = [*_repeating_entries(composition), *_heads_beside_the_width(composition)]
    others += _unused_phases(composition)
    return [*_unused_blocks(held), *others, *unreached]


def _unreached(cfg: fdl.Buildable, held: list[Node]) -> Iterator[str]:
    """Yield a sentence for each setting that a run of this length and form does not use."""
    calls = [(node, fdl.get_callable(node.value)) for node in held]

    def number(part: Any, name: str) -> int:
        value = computed(getattr(part, name, None))
        return value if isinstance(value, int) else 0

    seq_len, num_steps = number(cfg, "seq_len"), number(cfg, "num_steps")
    windows = {number(node.value, _SPANS[kind]) for node, kind in calls if kind in _SPANS}
    if windows and max(windows) > seq_len > 0:
        yield f"a window of {max(windows)} tokens sees all of sequences of {seq_len=}."
    shares = (getattr(node.value, "warmup", None) for node, kind in calls if kind is optim.Phases)
    warmups = [num_steps for share in shares if isinstance(share, float) and share >= 1]
    warmups += [number(node.value, name) for node, kind in calls for name in _WARMUPS.get(kind, ())]
    if warmups and max(warmups) >= num_steps > 0:
        yield f"a warm-up of {max(warmups)} steps takes the whole run, of {num_steps=}."
    for node, kind in calls:
        if kind in _BEGIN_LATER and (begin := number(node.value, "begin")) > num_steps > 0:
            yield f"{node.path} begins at step {begin}, after the end of the run, at {num_steps=}."
        ahead = number(node.value, "num_predictions") if kind is model.MultiTokenTransformer else 0
        if ahead > seq_len - 2 > 0:
            yield f"num_predictions={ahead} is beyond sequences of {seq_len=}."
    kinds = {kind for _, kind in calls}
    meshes = [node.value for node, kind in calls if kind is Mesh]
    context, tensor, shard = (
        max((number(mesh, name) for mesh in meshes), default=1) for name in _AXES
    )
    if UlyssesContext in kinds and context == 1:
        yield "use_ulysses divides no sequence: add fiddler:use_mesh(context=...)."
    if SequenceParallel in kinds and tensor == 1:
        yield "use_sequence_parallel divides no stream: add fiddler:use_mesh(tensor=...)."
    if shard == 1 and any(kind is MeshParallel and not node.value.reshards for node, kind in calls):
        yield "use_zero2 has no sharded weights to gather: add fiddler:use_fsdp."
    if tensor == 1 and any(
        number(node.value, "num_chunks") > 1 for node, kind in calls if kind in _TENSOR
    ):
        yield "use_chunked_sums has no sums to send: add fiddler:use_mesh(tensor=...)."
    if optim.ScheduleFreeAdamW in kinds and getattr(cfg, "average", None) is not None:
        yield (
            "schedule-free AdamW averages weights itself, and the average of those is evaluated: "
            "leave out one of them."
        )
    if optim.ScheduleFreeAdamW in kinds and _DECAYING & kinds:
        yield "schedule-free AdamW takes the place of a decaying rate: add fiddler:use_constant."


def _unused_phases(composition: Composition) -> Iterator[str]:
    """Yield a sentence for each directive that sets what a schedule has no use for."""
    causes = [cause for cause in composition.effects if cause.kind.role == "edit"]
    named = {edit.path: cause.named for cause in causes for edit in cause.edits}
    for node in parts(composition.resolved.bound):
        if fdl.get_callable(node.value) is not optim.Phases:
            continue
        part: Any = node.value
        shape, lowest = part.shape, computed(part.min_lr_ratio)
        kind = fdl.get_callable(shape) if isinstance(shape, fdl.Buildable) else None
        cause = named.get(f"{node.path}.min_lr_ratio")
        is_idle = kind is optim.NoDecay
        if kind is optim.InverseSqrtDecay and isinstance(steps := computed(part.num_steps), int):
            scales = computed(shape.timescale), computed(part.warmup)
            scale: Any = next((size for size in scales if isinstance(size, int | float)), 0)
            is_idle = scale * (steps if isinstance(scale, float) else 1) > steps * lowest**2
        if cause and lowest and is_idle:
            yield f"{cause}: the rate never falls as low as min_lr_ratio={lowest}: leave it out."
        cycles = (part.cycles, part.cycle_length, getattr(shape, "cycles", None))
        cause = named.get(f"{node.path}.rewarmup")
        if cause and part.rewarmup and all(number in (None, 1) for number in cycles):
            yield f"{cause}: a schedule of one cycle warms up once: add fiddler:use_cycles."


def _unused_blocks(held: list[Node]) -> Iterator[str]:
    """Yield a sentence for each model with more blocks than layers, or layers that share none."""
    called = ((node.value, fdl.get_callable(node.value)) for node in held)
    for part, kind in called:
        if not (inspect.isclass(kind) and issubclass(kind, model.Transformer)):
            continue
        depth, first = computed(part.num_layers), part.first_blocks or ()
        if not isinstance(depth, int) or not isinstance(blocks := part.blocks, list | tuple):
            continue
        if len(blocks) > depth:
            yield (
                f"only the first {depth} of the {len(blocks)} blocks of a model make layers, as "
                f"its num_layers is {depth}. Set the depth before fiddler:unroll."
            )
        entries = {*map(id, first), *map(id, blocks)}
        if part.sharing is not None and 1 < depth <= len(entries):
            yield (
                f"the sharing of a model shares no weights: each of its {depth} layers has an "
                "entry of its own. Leave out fiddler:unroll, or tie entries of blocks."
            )


def _repeating_entries(composition: Composition) -> Iterator[str]:
    """Yield a sentence for each directive by which entries, one for each layer, become a pattern.

    Code that made them for these layers reports that itself.
    """
    number_in = numbers_in(composition.resolved)
    edits = [(cause, edit) for cause in composition.effects for edit in cause.edits]
    for node in parts(composition.config):
        for name, count in repeats_of(node.value).items():
            items, counted = (join(node.path, step_to(key)) for key in (name, count))
            size, now = len(set_arguments(node.value).get(name) or ()), number_in(node.value, count)
            is_entry = re.compile(rf"{re.escape(items)}(\[\d+\])?").fullmatch
            is_made = any(cause.kind.portable and is_entry(edit.path) for cause, edit in edits)
            by = [cause for cause, edit in edits if edit.path == counted and edit.before == size]
            if by and size > 1 and isinstance(now, int) and now > size and not is_made:
                yield (
                    f"{by[-1].named}: the {size} entries of {items}, each of which was for one of "
                    f"{size} {count.removeprefix('num_')}, repeat until there are {now}."
                )


def _heads_beside_the_width(composition: Composition) -> Iterator[str]:
    """Yield a sentence for each directive by which heads that filled the width no longer do."""
    edits = [(cause, edit) for cause in composition.effects for edit in cause.edits]
    if any(edit.path.endswith((".head_dim", ".hidden_dim")) for _, edit in edits):
        return
    for cause in composition.effects:
        for edit in cause.edits if cause.kind.role != "base" and cause.rerun is None else ():
            if not edit.path.endswith(".num_heads") or edit.before not in (None, fdl.NO_VALUE):
                continue
            mixer = find_parameter(composition.resolved.bound, edit.path).container
            sizes = (getattr(mixer, name, None) for name in ("num_heads", "head_dim", "hidden_dim"))
            heads, size, width = map(computed, sizes)
            if all(isinstance(one, int) for one in (heads, size, width)) and heads * size != width:
                yield (
                    f"{cause.named}: heads keep head_dim={size}, so that {heads} of them have "
                    f"{heads * size} dimensions beside hidden_dim={width}. tag:HeadDim="
                    f"{max(width // heads, 1)} makes them fill it."
                )
                break

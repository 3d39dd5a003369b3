"""Small copies of configs, with their structure, for checks that compute on this machine."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fiddle as fdl
import torch

from fidgpt import fiddlers, graph
from fidgpt.graph import ConfigError
from fidgpt.graph.fiddle import argument_tags, assign, set_arguments
from fidgpt.model import Indexer, RoPE
from fidgpt.parallel import PIPELINE, DataParallel, MeshSizes, TorchSchedule
from fidgpt.train import Float32, Trainer

MOST_PROCESSES = 8  # of a mesh that is kept as it is

# By quantity, which is what a tag is named after, or else the parameter. Further values of one
# quantity, as the window of some layers, become multiples of the first.
_WIDTHS = {
    "head_dim": 16,
    "ffn_dim": 48,
    "rank": 4,
    "kv_rank": 24,
    "query_rank": 20,
    "rope_head_dim": 8,
    "value_head_dim": 12,
}
_LENGTHS = {"window": 8, "length": 7, "size": 8}
_EXPERTS = {"num_experts": 4, "top_k": 2, "num_groups": 2, "top_groups": 1}
_HEADS, _HEAD_DIM, _SEQ_LEN, _VOCAB_SIZE, _ROWS = 4, 16, 32, 320, 3

Change = Callable[[Any], None]


def mesh_of(parallel: DataParallel) -> MeshSizes:
    """Return the mesh of a run that has not begun; axes that the config leaves open have size 2.

    An axis that takes the processes that are left, and data parallelism are open.
    """
    least, sizes = parallel.planned_size, parallel.mesh
    borrowed = math.prod(sizes[axis] for axis in sizes.axes() if axis.borrows)
    for number in (2 * least, least):
        with contextlib.suppress(ValueError):
            return parallel.layout(number)
    return parallel.layout(borrowed * least)  # processes for the axes that borrow them


def shrink_mesh(mesh: MeshSizes) -> MeshSizes:
    """Return a mesh that fits on this machine: the same, or one of 2 for each size above 1."""
    if mesh.size <= MOST_PROCESSES:
        return mesh
    return dataclasses.replace(mesh, **{name: min(size, 2) for name, size in mesh.sizes.items()})


def shrink(
    cfg: fdl.Config[Trainer],
    *,
    mesh: MeshSizes,
    build: Callable[[fdl.Config[Trainer]], Any],
) -> tuple[fdl.Config[Trainer], list[str]]:
    """Return a small copy of a config that takes single steps in float32, and paths left large.

    Widths, heads, depth, vocabulary, sequences, batches and experts are small; patterns of blocks,
    masks, ties and kinds of components stay, as do sizes without which the config does not build.

    Args:
      cfg: the graph, which stays as it is.
      mesh: whose sizes divide the new ones.
      build: raises ConfigError if a graph does not build.
    """
    cfg = graph.clone(cfg)
    _simplify(cfg, mesh)
    changes = _changes(cfg, mesh)
    small = graph.clone(cfg)
    for change in changes.values():
        change(small)
    with contextlib.suppress(ConfigError):
        build(small)
        return small, []
    small, left = cfg, list(changes)
    for name, change in changes.items():
        changed = graph.clone(small)
        change(changed)
        with contextlib.suppress(ConfigError):
            build(changed)
            small = changed
            left.remove(name)
    return small, left


def _simplify(cfg: Any, mesh: MeshSizes) -> None:
    """Leave out what a single step does not need or what differs between meshes."""
    cfg.precision = fdl.Config(Float32)
    # Not more of them for smaller batches.
    cfg.num_steps = graph.computed(graph.bind(cfg).num_steps)
    cfg.evaluators, cfg.trackers, cfg.observers = {}, [], []
    for name in (
        *("samples", "weights", "average", "meters", "guard", "divergence", "replay"),
        *("batch_growth", "seq_len_growth", "prefetch"),
    ):
        setattr(cfg, name, None)
    if "mirror" in set_arguments(cfg.checkpoints):
        cfg.checkpoints.mirror = None
    if "memory" in set_arguments(cfg.checkpoints):
        cfg.checkpoints.memory = None
    for name in {"compile", "float8"} & set_arguments(cfg.model).keys():
        setattr(cfg.model, name, None)
    for name in {"stages", "tokenizer", "weights"} & set_arguments(cfg.step).keys():
        setattr(cfg.step, name, None)
    schedule = set_arguments(cfg.step).get("schedule")
    if isinstance(schedule, fdl.Buildable) and fdl.get_callable(schedule) is TorchSchedule:
        schedule.stages_per_rank = None  # as few as it takes
    for part, key, quantity, value in _numbers(cfg):
        if quantity == "dropout" and value:
            assign(part, key, 0.0)
    for node in graph.parts(cfg.parallel):
        if fdl.get_callable(node.value) is type(mesh):
            for name, size in mesh.sizes.items():
                setattr(node.value, name, size)
    cfg.parallel.device = torch.device("cpu")


def _changes(cfg: Any, mesh: MeshSizes) -> dict[str, Change]:
    """Return what makes a graph small, by name."""
    divisor = math.lcm(*mesh.sizes.values())
    heads = _multiple(_HEADS, divisor)
    experts = _EXPERTS | {"num_experts": _multiple(_EXPERTS["num_experts"], divisor)}

    def widths(cfg: Any) -> None:
        _set_heads(cfg, heads)
        sizes = {name: _multiple(size, divisor) for name, size in _WIDTHS.items()}
        _set(cfg, sizes | {"hidden_dim": _HEAD_DIM * heads})

    def sequence(cfg: Any) -> None:
        length = _multiple(_SEQ_LEN, 2 * divisor)
        _set(cfg, {"seq_len": length}, spread=False)
        _set(cfg, _LENGTHS, most=length - 1)

    def batch(cfg: Any) -> None:
        # The last process has a row more than others, and as many micro-batches.
        rows = max(_ROWS, 2 * _num_stages(cfg, mesh) - 1)
        cfg.batch_size = rows * mesh.data_size + (mesh.data_size > 1)
        if isinstance(getattr(cfg, "micro_batch_size", None), int) or mesh[PIPELINE] > 1:
            cfg.micro_batch_size = 2

    return {
        "vocab_size": _set_vocabulary,
        "batch_size": batch,
        "seq_len": sequence,
        "num_layers": lambda cfg: _set_depth(cfg, _num_stages(cfg, mesh)),
        "num_experts": lambda cfg: _set(cfg, experts, spread=False),
        "hidden_dim": widths,
    }


def _multiple(size: int, divisor: int) -> int:
    return -(-size // divisor) * divisor


def _numbers(cfg: Any) -> Iterator[tuple[fdl.Buildable, Any, str, Any]]:
    """Yield the numbers of a graph: node, key, quantity and value."""
    for node in graph.parts(cfg):
        tags = argument_tags(node.value)
        for key, value in set_arguments(node.value).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                named = [_snake(tag.__name__) for tag in tags.get(key, ())]
                yield node.value, key, (named or [str(key)])[0], value


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _set(cfg: Any, sizes: Mapping[str, int], *, spread: bool = True, most: int = 0) -> None:
    """Set quantities of a model to small values; different ones stay different with `spread`."""
    values: dict[str, set[int]] = {}
    changes = []
    for part, key, quantity, value in _numbers(cfg):
        is_untagged = not argument_tags(part).get(key)
        if quantity == "head_dim" and is_untagged and fdl.get_callable(part) is RoPE:
            quantity = "rope_head_dim"  # the share of a head that latent attention rotates
        if quantity in sizes and isinstance(value, int):
            changes.append((part, key, quantity, value))
            values.setdefault(quantity, set()).add(value)
    for part, key, quantity, value in changes:
        place = sorted(values[quantity]).index(value) if spread else 0
        small = sizes[quantity] * (1 + place)
        small = min(small, most) if most else small
        if value > small:
            assign(part, key, small)


def _set_heads(cfg: Any, heads: int) -> None:
    """Set numbers of heads; key heads stay one, all, or some of them."""
    bound = graph.bind(cfg)
    old = 0
    for node in graph.parts(bound.model):
        numbers = set_arguments(node.value)
        own = numbers.get("num_heads")
        if own is None and all(isinstance(numbers.get(k), int) for k in ("hidden_dim", "head_dim")):
            own = numbers["hidden_dim"] // numbers["head_dim"]
        old = max(old, own) if isinstance(own, int) else old
    for part, key, quantity, value in _numbers(cfg):
        if quantity == "num_heads" and isinstance(value, int):
            # Of few heads of an indexer, many scores are 0: which of equal ones it takes is open.
            assign(part, key, value if fdl.get_callable(part) is Indexer else heads)
        elif quantity == "num_kv_heads" and isinstance(value, int) and value > 1:
            assign(part, key, heads if value >= old else heads // 2)


def _num_stages(cfg: Any, mesh: MeshSizes) -> int:
    """Return the stages of a pipeline; 1 without one."""
    schedule = getattr(cfg.step, "schedule", None)
    if mesh[PIPELINE] == 1 or not isinstance(schedule, fdl.Buildable):
        return mesh[PIPELINE]
    return fdl.build(schedule).num_stages(mesh[PIPELINE])


def _set_depth(cfg: Any, num_stages: int) -> None:
    """Keep the first blocks, one round of the pattern, and the begin of the next."""
    for node in graph.parts(cfg):
        held = set_arguments(node.value)
        if isinstance(held.get("num_layers"), int):
            listed = [value for value in held.values() if isinstance(value, list | tuple)]
            blocks = [b for value in listed for b in value if isinstance(b, fdl.Partial)]
            least = max(len(blocks) + 1, num_stages)
            assign(node.value, "num_layers", min(held["num_layers"], least))


def _set_vocabulary(cfg: Any) -> None:
    """Set the vocabulary, which holds the bytes; an odd size stays odd."""
    fiddlers.use_bytes(cfg)
    for part, key, quantity, value in _numbers(cfg):
        if quantity == "vocab_size":
            assign(part, key, _VOCAB_SIZE + value % 2)

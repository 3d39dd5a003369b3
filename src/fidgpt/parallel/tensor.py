"""Tensor parallelism: matrix products divided over processes, as components declare it.

Three rules (Megatron-LM, Shoeybi et al., 2019, arXiv:1909.08053) give everything from what a
component declares by `own_split` (see `fidgpt.placement`):

1. What enters a divided component is whole, and its gradient is summed; what leaves it is summed.
2. A whole parameter inside of it has a gradient that is summed (`reduce_gradients`).
3. What is outside computes the same on all processes.

With `SequenceParallel`, the stream between the divided components of a block is split along the
sequence (Korthikanti et al., 2022, arXiv:2205.05198, section 4.2.2): what enters is gathered, what
leaves is summed and split, and the gradients of norms between them are summed too. Other components
get the whole sequence. Evaluation and generation, whose sequences have any length, use rule 1.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fidgpt.attributes import changed
from fidgpt.parallel.axes import Axis, AxisPart, MeshSizes, Weights
from fidgpt.parallel.linear import can_defer_weight_grad, gather_input, sum_in_chunks
from fidgpt.placement import (
    LINEAR_DIMS,
    Columns,
    Dims,
    Divisible,
    Once,
    OnHeads,
    Rows,
    Shard,
    Split,
    gather_uneven,
)
from fidgpt.processes import Processes, collectives
from fidgpt.processes.collectives import gathered, joined, scattered, sliced, summed
from fidgpt.ranges import require_size

__all__ = ["SequenceParallel", "TensorParallel"]

TENSOR = Axis(name="tensor", splits_heads=True, weights=Weights.PARTS)

Place = tuple[nn.Module, str]  # of a parameter: the module that holds it, and its name there
_SEQUENCE = 1  # the dimension of a stream [batch, seq, hidden]


class _Cut(NamedTuple):
    """How a parameter is divided: along a dimension, or counted on one process if that is None."""

    dim: int | None
    units: int = 1
    repeats: bool = False
    uneven: bool = False


class TensorParallel(AxisPart):
    """Divides matrix products over the processes of the axis `tensor`.

    Args:
      num_chunks: in how many chunks of tokens the outputs of attention and MLPs are summed, each
        sent while the next is computed; see `fidgpt.parallel.linear`.

    Raises:
      ValueError: `num_chunks` is below 1.
    """

    def __init__(self, *, num_chunks: int = 1) -> None:
        require_size(num_chunks=num_chunks)
        self.num_chunks = num_chunks

    def check(self, model: nn.Module, *, mesh: MeshSizes, seq_len: int) -> None:
        """Raise ValueError unless `mesh.tensor` divides the heads and widths of the model."""
        size = mesh[TENSOR]
        wrong: dict[str, None] = {}
        units: set[Columns | Rows | OnHeads] = set()
        for path, component in _divided(model).items():
            for name, entry in _split_of(component).parts.items():
                if isinstance(entry, Once) or _child(component, name) is None:
                    continue
                units.add(entry)
                if not _divides(size, entry):
                    place = re.sub(r"(?<=\.)\d+(?=\.)", "*", path)
                    wrong[f"{entry.units} of {place}.{name}"] = None
        if wrong:
            listed = [*wrong]
            more = f", and {len(listed) - 3} more" if len(listed) > 3 else ""
            fits = [n for n in range(2, 129) if all(_divides(n, entry) for entry in units)]
            choice = f", such as {', '.join(map(str, fits[:4]))}" if fits else ""
            raise ValueError(
                f"tensor={size} processes cannot share heads or columns evenly: "
                f"{', '.join(listed[:3])}{more}. Choose another size for the axis tensor{choice}, "
                "or other numbers of heads and widths of MLPs."
            )

    def __call__(self, model: nn.Module, axis: Processes) -> None:
        """Replace the parameters of divided components by parts, and add hooks at their borders."""
        self._apply(model, axis, blocks=[])

    def undivided(self, model: nn.Module) -> list[str]:
        """Return the paths of modules with matrices of their own that all processes compute."""
        components = _divided(model).values()
        inside = {part for component in components for part in component.modules()}
        return [
            path
            for path, module in model.named_modules()
            if module not in inside and any(p.dim() > 1 for p in module.parameters(recurse=False))
        ]

    def dropout_matches_one_process(self, model: nn.Module) -> bool:
        """Return whether no divided component drops elements at random."""
        return not any(map(drops, _divided(model).values()))

    def _apply(self, model: nn.Module, axis: Processes, *, blocks: Sequence[nn.Module]) -> None:
        """Divide a model; the streams inside of `blocks` are split along the sequence."""
        components = _divided(model)
        on_parts = {child for block in blocks for child in block.children()}
        partial_sums = [*components.values(), *filter(is_elementwise, on_parts)]
        inside = {id(p) for component in partial_sums for p in component.parameters()}
        inside |= {id(p) for block in blocks for p in block.parameters(recurse=False)}
        cuts = {
            place: cut for mod in components.values() for place, cut in (_cuts(mod) or {}).items()
        }
        shards: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for name, whole in module._parameters.items():
                if whole is not None:
                    if id(whole) not in shards:
                        cut, is_summand = cuts.get((module, name)), id(whole) in inside
                        shards[id(whole)] = _shard(whole, cut, axis, is_summand)
                    module._parameters[name] = shards[id(whole)]
        for component in components.values():
            _divide(component, axis, on_part=component in on_parts, num_chunks=self.num_chunks)
            rank_local_rng(component, axis)
        for child in on_parts - {*components.values()}:
            if not is_elementwise(child):
                child.register_forward_pre_hook(partial(_enter_whole, axis))
                child.register_forward_hook(partial(_leave_whole, axis))


def _divide(component: Any, axis: Processes, *, on_part: bool, num_chunks: int) -> None:
    """Add the hooks of a component, and tell it which part it computes."""
    split = _split_of(component)
    for name, entry in split.parts.items():
        child = _child(component, name)
        if not isinstance(child, nn.Module):
            continue
        if isinstance(entry, Once):
            child.register_forward_hook(partial(_once, axis))
        if isinstance(entry, OnHeads) and not is_elementwise(child):
            shard = Shard(axis, -2, entry.units, _num_shards(axis.size, entry))
            child.register_forward_pre_hook(partial(_gather_heads, shard))
            child.register_forward_hook(partial(_own_heads, shard))
    if hasattr(component, "split_place"):
        component.split_place = (axis.rank, axis.size)
    if hasattr(component, "sum_over_parts"):
        component.sum_over_parts = lambda x: collectives.all_sum(x, axis)
    if hasattr(component, "first_row"):
        component.first_row = component.weight.shards[-1].begin
    columns = [name for name, entry in split.parts.items() if isinstance(entry, Columns)]
    deferred = tuple(name for name in columns if can_defer_weight_grad(_child(component, name)))
    component.register_forward_pre_hook(partial(_enter, axis, on_part, deferred))
    if split.gathers:
        component.vocabulary = SplitVocabulary(component.weight.shards[-1])
        component.register_forward_hook(component.vocabulary.leave)
    elif split.returns is not None and num_chunks > 1:
        projection = component.get_submodule(split.returns)
        sum_in_chunks(projection, axis, num_chunks=num_chunks, on_part=on_part)
    else:
        component.register_forward_hook(partial(_leave, axis, on_part))


class SplitVocabulary:
    """The logits of a divided unembedding: this process has the logits of some tokens.

    Args:
      shard: the place of the table's shard.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.size = shard.size
        self._is_local = False

    def __deepcopy__(self, memo: object) -> "SplitVocabulary":
        return self

    @property
    def begin(self) -> int:
        """The first token whose logits this process has."""
        return self.shard.begin

    def local(self) -> AbstractContextManager[None]:
        """Context in which the unembedding returns this process's logits only."""
        return changed(self, _is_local=True)

    def leave(self, module: nn.Module, args: object, out: Tensor) -> Tensor:
        """Gather the logits of all tokens, unless `local`; a forward hook."""
        if self._is_local:
            return out
        begin, size = self.begin, out.shape[-1]  # which differ between processes
        return collectives.collective(
            out,
            lambda x: gather_uneven(x, self.shard, -1),
            lambda outer: outer.narrow(-1, begin, size),
        )

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all processes."""
        return collectives.all_sum(x, self.shard.axis)

    def max(self, x: Tensor) -> Tensor:
        """Return the elementwise maximum over all processes."""
        return collectives.all_max(x, self.shard.axis)


# Hooks. A stream is split along the sequence in training only, where lengths are known to fit.


def _enter(
    axis: Processes,
    on_part: bool,
    deferred: tuple[str, ...],
    module: nn.Module,
    args: tuple[Any, ...],
) -> Any:
    if not args[0].is_floating_point():
        return None
    dim = _SEQUENCE if on_part and module.training else None
    weights = [module.get_parameter(f"{name}.weight") for name in deferred]
    return gather_input(args[0], axis, dim, weights), *args[1:]


def _leave(axis: Processes, on_part: bool, module: nn.Module, args: object, out: Tensor) -> Tensor:
    if on_part and module.training:
        return scattered(out, axis, _SEQUENCE)
    return summed(out, axis)


def _enter_whole(axis: Processes, module: nn.Module, args: tuple[Any, ...]) -> Any:
    return (joined(args[0], axis, _SEQUENCE), *args[1:]) if module.training else None


def _leave_whole(axis: Processes, module: nn.Module, args: object, out: Tensor) -> Tensor:
    return sliced(out, axis, _SEQUENCE) if module.training else out


def _begin_parts(axis: Processes, module: nn.Module, args: tuple[Any, ...]) -> Any:
    if not module.training:
        return None
    if (length := args[0].shape[_SEQUENCE]) % axis.size:
        raise ValueError(
            f"sequences of {length} tokens cannot be split evenly over the {axis.size} processes "
            "of the axis tensor: use lengths that are multiples of it, or TensorParallel."
        )
    return sliced(args[0], axis, _SEQUENCE), *args[1:]


def _end_parts(axis: Processes, module: nn.Module, args: object, out: Tensor) -> Tensor:
    return joined(out, axis, _SEQUENCE) if module.training else out


def rank_local_rng(inside: nn.Module, axis: Processes) -> None:
    """Let processes draw different random numbers inside a module, and the same ones after it.

    They drop elements of different heads or tokens there.
    """
    if not drops(inside):
        return
    states: list[list[tuple[torch.Generator, Tensor]]] = []

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        seed = int(torch.randint(2**62, ()))  # of the CPU, so that no device is waited for
        generators = [torch.default_generator]
        if args[0].is_cuda:
            generators.append(torch.cuda.default_generators[args[0].device.index])
        states.append([(generator, generator.get_state()) for generator in generators])
        for generator in generators:
            generator.manual_seed(seed + axis.rank)

    def leave(module: nn.Module, args: object, out: object) -> None:
        for generator, state in states.pop():
            generator.set_state(state)

    inside.register_forward_pre_hook(enter)
    inside.register_forward_hook(leave)


def _once(axis: Processes, module: nn.Module, args: object, out: Tensor) -> Tensor:
    return out * 0.0 if axis.rank else out


def _gather_heads(shard: Shard, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    heads = gathered(args[0], shard.axis, -2)
    size = heads.shape[-2] // shard.axis.size
    return (heads.unflatten(-2, (-1, size))[..., :: shard.copies, :, :].flatten(-3, -2),)


def _own_heads(shard: Shard, module: nn.Module, args: object, out: Tensor) -> Tensor:
    return shard.cut(out)


ELEMENTWISE_MODULES = (nn.LayerNorm, nn.RMSNorm, nn.Identity, nn.Dropout)


def is_elementwise(module: nn.Module) -> bool:
    """Return whether a module treats each vector of the last dimension by itself."""
    return getattr(module, "ELEMENTWISE", False) or type(module) in ELEMENTWISE_MODULES


def drops(module: nn.Module) -> bool:
    """Return whether a module drops elements at random."""
    return any(getattr(submodule, "dropout", 0.0) for submodule in module.modules())


def _divided(model: nn.Module) -> dict[str, Any]:
    """Return the components that can be divided by their path, outermost ones only.

    Not divided are components with a child that does not declare its dimensions, and those that
    share a parameter with a module that would divide it in another way, or not at all.
    """
    outermost: dict[str, Any] = {}
    for path, module in model.named_modules():
        is_inner = any(path.startswith(f"{outer}.") for outer in outermost)
        if _declares(module) and not is_inner and _cuts(module) is not None:
            outermost[path] = module
    while True:
        cuts: dict[Place, _Cut] = {}
        for component in outermost.values():
            cuts |= _cuts(component) or {}
        uses: dict[int, set[Any]] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                uses.setdefault(id(parameter), set()).add(cuts.get((module, name)))
        refused = [
            path
            for path, component in outermost.items()
            if any(
                len(uses[id(module._parameters[name])]) > 1
                for module, name in _cuts(component) or ()
            )
        ]
        if not refused:
            return outermost
        for path in refused:
            del outermost[path]


def _declares(module: nn.Module) -> bool:
    """Return whether a module declares its split, and not only a base with another forward."""
    if not isinstance(module, Divisible):
        return False
    order = type(module).__mro__
    at = {name: next(i for i, k in enumerate(order) if name in vars(k)) for name in _METHODS}
    return at["own_split"] <= at["forward"]


_METHODS = ("own_split", "forward")


def _cuts(component: Any) -> dict[Place, _Cut] | None:
    """Return how the parameters of a component are cut; None if a child does not declare it."""
    cuts: dict[Place, _Cut] = {}
    for name, entry in _split_of(component).parts.items():
        child = _child(component, name)
        if child is None or isinstance(entry, OnHeads):
            continue
        cut = _Cut(None) if isinstance(entry, Once) else _Cut(entry.dim, entry.units)
        if isinstance(entry, Columns):
            cut = cut._replace(repeats=entry.repeats, uneven=entry.uneven)
        if isinstance(child, nn.Parameter):
            holder, _, last = name.rpartition(".")
            cuts[component.get_submodule(holder), last] = cut
        elif not isinstance(entry, Once):
            dims = _dims(child, entry)
            if dims is None:
                return None
            for own, dim in dims.items():
                if child._parameters.get(own) is not None:
                    cuts[child, own] = cut._replace(dim=dim)
    return cuts


def _dims(module: nn.Module, entry: Columns | Rows) -> Dims | None:
    """Return the dimension in which each parameter of a module is split."""
    kind = "columns" if isinstance(entry, Columns) else "rows"
    declared: Mapping[str, Dims] | None = getattr(module, "SPLIT_DIMS", None)
    if declared is None and type(module) is nn.Linear:
        declared = LINEAR_DIMS
    return None if declared is None else declared.get(kind)


def _split_of(component: Any) -> Split:
    """Return what a component declares of its parts.

    Raises:
      ValueError: it is no `Split`, or the component has no part of a name. Parts may be
        None, and containers empty.
    """
    split, kind = component.own_split(), type(component).__name__
    if not isinstance(split, Split):
        raise ValueError(f"own_split() of {kind} returns {split!r:.80}: return a Split.")
    for name in (*split.parts, *filter(None, [split.returns])):
        part = component
        for step in name.split("."):
            if not isinstance(part, nn.ModuleDict | None) and not hasattr(part, step):
                raise ValueError(f"own_split() of {kind} names {name!r}, which it does not have.")
            part = getattr(part, step, None)
    return split


def _child(component: nn.Module, name: str) -> nn.Module | nn.Parameter | None:
    """Return a child module or parameter by its path; None if there is none."""
    holder, _, last = name.rpartition(".")
    modules = dict(component.named_modules())
    own = dict(modules[holder].named_parameters(recurse=False)) if holder in modules else {}
    return modules.get(name) or own.get(last)


def _divides(size: int, entry: Columns | Rows | OnHeads) -> bool:
    units = entry.units
    if isinstance(entry, Columns) and entry.uneven:
        return (size - 1) * -(-units // size) < units  # none is without
    if not isinstance(entry, Rows) and entry.repeats and size % units == 0:
        return True
    return units % size == 0


def _num_shards(size: int, entry: Columns | Rows | OnHeads | _Cut) -> int:
    return entry.units if getattr(entry, "repeats", False) and entry.units < size else size


def _shard(
    whole: nn.Parameter, cut: _Cut | None, axis: Processes, is_partial: bool
) -> nn.Parameter:
    """Return this process's shard of a parameter on the meta device."""
    if cut is None and not is_partial:
        return whole
    if cut is None:
        place = Shard(axis, is_partial=True)
    elif cut.dim is None:
        place = Shard(axis, is_once=True)
    else:
        place = Shard(axis, cut.dim, whole.shape[cut.dim], _num_shards(axis.size, cut))
    return place.parameter(whole)


class SequenceParallel(TensorParallel):
    """Tensor parallelism that also splits the stream between components along the sequence.

    Args:
      num_chunks: as of `TensorParallel`.
    """

    def check(self, model: nn.Module, *, mesh: MeshSizes, seq_len: int) -> None:
        """Raise ValueError unless the mesh divides heads, widths and sequences."""
        super().check(model, mesh=mesh, seq_len=seq_len)
        _stream_blocks(model)
        if seq_len % (size := mesh[TENSOR] * mesh.row_size):
            raise ValueError(
                f"{seq_len=} cannot be split evenly over the {size} processes that share each "
                f"sequence: choose a multiple of {size}, or leave out sequence parallelism."
            )

    def dropout_matches_one_process(self, model: nn.Module) -> bool:
        """Return False: processes drop elements of different tokens."""
        return False

    def __call__(self, model: nn.Module, axis: Processes) -> None:
        """Divide the model, and the streams inside of its blocks."""
        blocks, divided = _stream_blocks(model), {*_divided(model).values()}
        self._apply(model, axis, blocks=[*dict.fromkeys(blocks)])
        # Skips read whole streams between blocks; a repeated block has no last place in a run.
        is_alone = len({*blocks}) < len(blocks) or len(getattr(model, "skips", ())) > 0
        alone = [[block] for block in dict.fromkeys(blocks)]
        for run in alone if is_alone else _runs(model, blocks):
            run[0].register_forward_pre_hook(partial(_begin_parts, axis))
            run[-1].register_forward_hook(partial(_end_parts, axis))
            for block in run[:-1]:
                vars(block)["stream_parts"] = axis.size
            for block in run:
                whole = [x for x in block.children() if x not in divided and not is_elementwise(x)]
                if not any(map(drops, whole)):  # else these would differ
                    rank_local_rng(block, axis)


def _stream_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model in which tokens meet inside of children only.

    Raises:
      ValueError: another module has such a layer too, whose sequences have other lengths.
    """
    layers = getattr(model, "blocks", ())
    blocks = [block for block in layers if getattr(block, "ELEMENTWISE_STREAM", False)]
    elsewhere = {
        part for child in model.children() if child is not layers for part in child.modules()
    }
    if elsewhere & {*blocks}:
        raise ValueError(
            "sequence parallelism cannot split a block that the model uses outside of its layers "
            "too, such as one shared with token predictions: use TensorParallel."
        )
    return blocks


def _runs(model: Any, blocks: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """Return the consecutive blocks between which streams stay split."""
    runs: list[list[nn.Module]] = [[]]
    for layer in model.blocks:
        if layer in blocks:
            runs[-1].append(layer)
        else:
            runs.append([])
    return [run for run in runs if run]

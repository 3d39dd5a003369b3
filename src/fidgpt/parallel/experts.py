"""Expert parallelism: the experts of mixtures divided over processes, to which tokens are sent.

Each process holds some experts of every mixture, computes them for the tokens of all processes of
the axis, and sends the results back (Lepikhin et al., 2020, GShard, arXiv:2006.16668). Tokens are
sent unpadded, whatever their number, as rows that a dispatch has sorted by expert; so any dispatch
works, with or without a capacity. A component declares by `PER_EXPERT` what it has of each expert.

The axis borrows its processes from shard x context: everything outside of experts is divided as
without it, and FSDP shards experts over what remains of these axes.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fidgpt.model.moe import Experts, Groups, MoE
from fidgpt.parallel.axes import Axis, AxisPart, MeshSizes, Weights
from fidgpt.placement import Holders, Shard
from fidgpt.processes import Processes
from fidgpt.processes.collectives import begin_exchange, exchanged, planned_exchange

__all__ = ["ExpertParallel"]

EXPERT = Axis(name="expert", weights=Weights.PARTS, borrows=("shard", "context"))


class ExpertParallel(AxisPart):
    """Divides the experts of mixtures over the processes of the axis `expert`.

    A shared expert is computed while tokens are sent.
    """

    def check(self, model: nn.Module, *, mesh: MeshSizes, seq_len: int) -> None:
        """Raise ValueError unless the model has mixtures whose experts `mesh.expert` divides."""
        size, mixtures = mesh[EXPERT], _divided(model)
        if not mixtures:
            raise ValueError(
                f"expert={size} processes share the experts of mixtures, and the model has none "
                "that declare what they have of each expert (PER_EXPERT): set a size of 1, or use "
                "a mixture, as with fiddler:use_moe."
            )
        lent = math.prod(mesh.sizes[name] for name in EXPERT.borrows)
        for path, experts in mixtures.items():
            if (number := experts.num_experts) % size:
                sizes = [n for n in range(1, number + 1) if not number % n and not lent % n]
                raise ValueError(
                    f"expert={size} processes cannot share the num_experts={number} of {path} "
                    "evenly: choose another size for the axis expert, of "
                    f"{', '.join(map(str, sizes))}, or another number of experts."
                )

    def __call__(self, model: nn.Module, axis: Processes) -> None:
        """Replace the parameters of experts by this process's shards, and send tokens to them."""
        mixtures = {id(part.experts): part for part in model.modules() if isinstance(part, MoE)}
        shards: dict[int, nn.Parameter] = {}
        for experts in _divided(model).values():
            _divide(experts, axis, shards)
            exchange = _Exchange(axis, experts.num_experts // axis.size)
            in_python: Any = torch.compiler.disable  # numbers of rows are known to no compiler
            experts.register_forward_pre_hook(in_python(exchange.enter))
            experts.register_forward_hook(in_python(exchange.leave))
            if (mixture := mixtures.get(id(experts))) is not None:
                mixture.num_ranks = axis.size
                mixture.beside = exchange.beside

    def undivided(self, model: nn.Module) -> list[str]:
        """Return the paths of experts that processes compute whole."""
        divided = _divided(model)
        return [
            path
            for path, module in model.named_modules()
            if isinstance(module, Experts) and path not in divided
        ]


def _divided(model: nn.Module) -> dict[str, Experts]:
    """Return by path the `Experts` that declare parameters of each single expert."""
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, Experts) and any(True for _ in _per_expert(module))
    }


def _per_expert(experts: Experts) -> Iterator[tuple[nn.Module, str, nn.Parameter, int | None]]:
    """Yield the parameters of each expert: their module, name and value.

    The last is the number of the expert, or None for a stack of all of them.
    """
    for module in experts.modules():
        for name in getattr(module, "PER_EXPERT", ()):
            child = getattr(module, name, None)
            if isinstance(child, nn.Parameter):
                yield module, name, child, None
            elif isinstance(child, nn.ModuleList):
                for number, expert in enumerate(child):
                    for part in expert.modules():
                        for own, parameter in part.named_parameters(recurse=False):
                            yield part, own, parameter, number


def _divide(experts: Experts, axis: Processes, shards: dict[int, nn.Parameter]) -> None:
    """Replace parameters by this process's shards; `shards` holds them by the whole's identity."""
    num_local = experts.num_experts // axis.size
    places = {
        (module, name): Shard(axis, 0, len(whole), axis.size)
        if number is None
        else Holders(axis, ranks=(number // num_local,), held_shape=tuple(whole.shape))
        for module, name, whole, number in _per_expert(experts)
    }
    for module in experts.modules():
        for name, whole in module._parameters.items():
            if whole is not None and id(whole) not in shards:
                place = places.get((module, name), Shard(axis, is_partial=True))
                shards[id(whole)] = place.parameter(whole)
        module._parameters.update(
            {name: shards[id(p)] for name, p in module._parameters.items() if p is not None}
        )
    if hasattr(experts, "first_expert"):
        setattr(experts, "first_expert", axis.rank * num_local)  # noqa: B010


class _Exchange:
    """Sends rows to the processes that hold their experts, and the results back: two hooks.

    Args:
      axis: the processes.
      num_local: number of experts that each holds.
    """

    def __init__(self, axis: Processes, num_local: int) -> None:
        self._axis = axis
        self._num_local = num_local
        self._beside: Callable[[], object] | None = None
        self._returns: list[Callable[[Tensor], Tensor]] = []

    def __deepcopy__(self, memo: object) -> "_Exchange":
        return _Exchange(self._axis, self._num_local)

    def beside(self, module: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[Tensor], Tensor]:
        """Let a module compute while rows are sent; return what gives its output."""
        outputs: list[Tensor] = []

        def compute() -> None:
            if not outputs:
                outputs.append(module(x))

        def output(x: Tensor) -> Tensor:
            compute()
            return outputs[0]

        self._beside = compute
        return output

    def enter(self, module: nn.Module, args: tuple[Tensor, Groups]) -> tuple[Tensor, Groups]:
        """Exchange the rows of all experts for the rows of this process's experts."""
        rows, groups = args
        beside, self._beside = self._beside, None
        axis, num_local = self._axis, self._num_local
        if axis.is_planned:
            axis.record("exchange", 8 * num_local * axis.size)  # numbers of rows
            self._returns.append(lambda out: planned_exchange(out, axis))
            return planned_exchange(rows, axis), Groups(
                groups.owners % num_local, groups.ends[:num_local]
            )
        ends, filled = groups.ends.long(), groups.filled
        sizes = ends.diff(prepend=ends.new_zeros(1))
        num_rows, slots = len(rows), None
        if filled is not None:
            waiting = torch.arange(num_rows, device=rows.device) - (ends - sizes)[groups.owners]
            slots = (waiting < filled[groups.owners]).nonzero().squeeze(1)
            rows, sizes = rows.index_select(0, slots), filled
        to_each = sizes.view(axis.size, num_local)
        from_each = exchanged(to_each, axis)  # of each of its own experts
        both = torch.stack([to_each.sum(1), from_each.sum(1)]).tolist()  # waits for the device
        sent, received = both
        arriving = begin_exchange(rows, axis, sent, received)
        if beside is not None:
            beside()
        experts = torch.arange(num_local, device=rows.device).repeat(axis.size)
        owners, order = experts.repeat_interleave(from_each.flatten()).sort(stable=True)
        places = order.argsort()

        def leave(out: Tensor) -> Tensor:
            out = begin_exchange(out.index_select(0, places), axis, received, sent)()
            if slots is None:
                return out
            return out.new_zeros(num_rows, out.shape[1]).index_copy(0, slots, out)

        self._returns.append(leave)
        ends = from_each.sum(0).cumsum(0).int()
        return arriving().index_select(0, order), Groups(owners, ends)

    def leave(self, module: nn.Module, args: object, out: Tensor) -> Tensor:
        """Exchange the results of this process's experts for the results of its own rows."""
        return self._returns.pop()(out)

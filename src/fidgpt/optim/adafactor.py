"""Adafactor: second moments of a row and a column per matrix, and the moments of divided ones.

Processes that hold parts of a matrix need no whole ones: each sums over what it holds, and the sums
of all processes are added up. Rows and columns are a thousandth of the parameters in size, so that
little is sent, and each process keeps them whole.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fidgpt.attributes import changed
from fidgpt.optim.optimizers import Closure, Group, loss_of
from fidgpt.placement import block_of, held, is_divided, whole_shape
from fidgpt.processes import Processes

__all__ = ["Adafactor"]

_Place = tuple[slice, ...] | None
_Share = tuple[_Place, bool]  # `place` and `counts` of `_Update`
_ALL = slice(None)
_FACTORS = {"row_var": -1, "col_var": -2}  # by name: the dimension over which a mean is taken
_step = inspect.unwrap(torch.optim.Adafactor.step)


class Adafactor(torch.optim.Adafactor):
    """torch's Adafactor (Shazeer and Stern, 2018, arXiv:1804.04235), for divided weights too.

    Row and column statistics cover the full matrix: processes that hold parts of it add up their
    sums.

    Attributes:
      processes: of the run; needed to step weights that are divided over them, and set by
        `share_work`.
    """

    processes: Processes | None = None
    _shares: dict[Tensor, _Share]

    def share_work(self, processes: Processes) -> None:
        """Let processes add up statistics; see `SharesWork`."""
        self.processes, self._shares = processes, {}

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Step once, and return the value of the closure."""
        groups = self.param_groups
        divided = [
            (group, parameter)
            for group in groups
            for parameter in group["params"]
            if parameter.grad is not None and is_divided(parameter)
        ]
        if not divided:
            return _step(self, closure)
        assert self.processes is not None, "`share_work` comes before steps of divided weights"
        loss = loss_of(closure)
        every = [parameter for group in groups for parameter in group["params"]]
        self._shares = self._shares or _shares([*filter(is_divided, every)], self.processes)
        updates = [_Update(group, p, self.state[p], *self._shares[p]) for group, p in divided]
        sums = iter(self.processes.all_reduce([x for update in updates for x in update.sums()]))
        for update in updates:
            update.remember(next(sums), {name: next(sums) for name in update.factors})
        # `apply` computes each direction again: all at once take as much memory as the weights.
        norms = [update.counted(update.direction()) for update in updates]
        for update, norm in zip(updates, self.processes.all_reduce(norms), strict=True):
            update.apply(norm)
        whole = [
            group | {"params": [p for p in group["params"] if not is_divided(p)]}
            for group in groups
        ]
        with changed(self, param_groups=whole):
            _step(self)
        return loss


def _shares(parameters: Sequence[Tensor], processes: Processes) -> dict[Tensor, _Share]:
    """Return what this process holds of parameters; all processes call this with the same ones."""
    blocks = map(block_of, parameters)
    everyone = processes.gather(
        [block and (block.begin, tuple(block.tensor.shape)) for block in blocks]
    )
    shares: dict[Tensor, _Share] = {}
    for parameter, held_by in zip(parameters, zip(*everyone, strict=True), strict=True):
        own, place = held_by[processes.rank], None
        if own is not None:
            place = tuple(slice(begin, begin + size) for begin, size in zip(*own, strict=True))
        counts = own is not None and held_by.index(own) == processes.rank
        shares[parameter] = place, counts
    return shares


def _with(items: tuple[Any, ...], dim: int, item: Any) -> tuple[Any, ...]:
    """Return sizes or places of dimensions with another item for `dim`, which is negative."""
    return (*items[:dim], item, *items[dim:][1:])


@dataclass
class _Update:
    """A step of a parameter; this process may hold only a part of it.

    Its methods are named after the steps of torch's loop over whole tensors, and compute the same
    numbers.

    Attributes:
      group: of the parameter.
      parameter: that is changed.
      state: of the optimizer.
      place: of what this process holds in each dimension of the whole; None if that is nothing.
      counts: whether it is the first of the processes that hold the same.
    """

    group: Group
    parameter: Any
    state: dict[str, Any]
    place: _Place
    counts: bool

    def __post_init__(self) -> None:
        self.weights, gradient = held(self.parameter), held(self.parameter.grad)
        self.gradient = -gradient if self.group["maximize"] else gradient
        self.shape = whole_shape(self.parameter)
        self.factors = _FACTORS if len(self.shape) > 1 else {}
        if not self.state:
            self.state["step"] = torch.tensor(0.0)
            for name, dim in self.factors.items():
                self.state[name] = self.gradient.new_zeros(_with(self.shape, dim, 1))
            if not self.factors:
                self.state["variance"] = torch.zeros_like(self.parameter)

    def counted(self, values: Tensor) -> Tensor:
        """Return the sum of squares, on the first process that holds them; zero on others."""
        return values.square().sum() if self.counts else values.new_zeros(())

    def sums(self) -> Iterator[Tensor]:
        """Yield what all processes sum: squares of weights, and of gradients by row and column."""
        yield self.counted(self.weights)
        for dim in self.factors.values():
            whole = self.gradient.new_zeros(_with(self.shape, dim, 1))
            if self.counts and self.place is not None:
                squares = self.gradient.square().sum(dim, keepdim=True)
                whole[_with(self.place, dim, _ALL)] = squares
            yield whole

    def remember(self, squares: Tensor, sums: dict[str, Tensor]) -> None:
        """Decay the weights, and move the statistics."""
        group, number = self.group, math.prod(self.shape)
        self.state["step"] += 1
        step, rate = self.state["step"].item(), float(group["lr"])
        weight = step ** group["beta2_decay"]
        length = (squares / number).sqrt().clamp(min=group["eps"][1])
        self.scale = length * min(rate, 1 / math.sqrt(step))
        if group["weight_decay"]:
            self.weights.mul_(1 - rate * group["weight_decay"])
        for name, total in sums.items():
            held(self.state[name]).lerp_(total / self.shape[self.factors[name]], weight)
        if not self.factors:
            held(self.state["variance"]).lerp_(self.gradient.square(), weight)

    def direction(self) -> Tensor:
        """Return the gradient over the root of its estimated second moment."""
        eps, place = self.group["eps"][0], self.place
        eps = torch.finfo(self.weights.dtype).eps if eps is None else eps
        if place is None:
            return torch.zeros_like(self.gradient)
        if self.factors:
            rows, columns = (
                held(self.state[name])[_with(place, dim, _ALL)] for name, dim in _FACTORS.items()
            )
            means = held(self.state["row_var"]).mean(-2, keepdim=True)[place[:-2]]
            estimate = rows * columns / means.clamp(min=eps)
        else:
            estimate = held(self.state["variance"]).clone()
        return estimate.clamp_(min=eps * eps).rsqrt_().mul_(self.gradient)

    def apply(self, squares: Tensor) -> None:
        """Move the weights, by a bounded length."""
        length = (squares / math.prod(self.shape)).sqrt() / self.group["d"]
        self.weights.sub_(self.direction() * (self.scale / length.clamp(min=1.0)))

"""Parameters that some processes of an axis hold and others do not, as stages of a pipeline do.

A process keeps the names, ties and kinds of all parameters of a model, so that its optimizer, its
checkpoints and its norms list the same ones as those of the others; of a parameter that it does not
hold it has an empty tensor. The attribute `holders` of a parameter is all that distinguishes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from fidgpt.processes.processes import Processes

__all__ = ["Holders", "holders_of", "is_absent"]


@dataclass(frozen=True, eq=False)
class Holders:
    """Who holds a parameter, of the processes of an axis.

    Attributes:
      axis: the processes.
      ranks: of those that hold it, in the order in which its gradients are summed; several if it is
        tied.
      shape: of what each of them holds.
    """

    axis: Processes = field(repr=False)
    ranks: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def is_here(self) -> bool:
        """Whether this process is one of them."""
        return self.axis.rank in self.ranks

    @property
    def is_owner(self) -> bool:
        """Whether this process is the first of them."""
        return self.axis.rank == self.ranks[0]

    def parameter(self, held: nn.Parameter) -> nn.Parameter:
        """Return what this process has of a parameter on the meta device: it, or nothing."""
        parameter = held
        if not self.is_here:
            empty = held.new_empty((0, *held.shape[1:]) if held.dim() else ())
            parameter = nn.Parameter(empty, held.requires_grad)
            vars(parameter).update(vars(held))  # such as its init and its shard
        vars(parameter)["holders"] = self
        return parameter

    def share(self, whole: torch.Tensor) -> torch.Tensor:
        """Return the owner's tensor on all processes of the axis, which all call this."""
        return self.axis.share(whole, source=self.ranks[0])


def holders_of(parameter: object) -> Holders | None:
    """Return who holds a parameter; None if all processes do."""
    return getattr(parameter, "holders", None)


def is_absent(parameter: object) -> bool:
    """Return whether this process does not hold a parameter."""
    holders = holders_of(parameter)
    return holders is not None and not holders.is_here


def shape_of(tensor: torch.Tensor) -> Sequence[int]:
    """Return the shape of what a holder has of a tensor."""
    holders = holders_of(tensor)
    return tensor.shape if holders is None else holders.shape

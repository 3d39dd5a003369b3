"""What a component declares so that its matrix products can be divided over processes.

A component that computes on heads or widths has a method `own_split()`, which returns for each of
its projections whether its outputs or its inputs are split:

    def own_split(self) -> Split:
        return Split({"up": Columns(self.ffn_dim), "down": Rows(self.ffn_dim)})

and everything else follows (see `fidgpt.parallel.tensor`): its input is the same on all processes,
its output is summed over them, and whole parameters inside it have their gradients summed. A linear
layer declares by `SPLIT_DIMS` which dimensions of its parameters that means. A component without a
declaration is computed whole on every process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["LINEAR_DIMS", "Columns", "Dims", "Divisible", "OnHeads", "Once", "Rows", "Split"]

Dims = Mapping[str, int | None]  # by parameter; None if it counts on one process only


@dataclass(frozen=True)
class Columns:
    """A module whose outputs are split, or a parameter that is split along `dim`.

    Attributes:
      units: number of heads, or of elements, which are not split further.
      dim: the dimension of a parameter; a module declares its own parameters'.
      repeats: whether several processes may hold the same unit, as query heads share key heads.
      uneven: whether the last process may hold fewer units than the others.
    """

    units: int
    dim: int = 0
    repeats: bool = False
    uneven: bool = False


@dataclass(frozen=True)
class Rows:
    """A module whose inputs are split, so that the sum of its outputs is the result.

    Attributes:
      units: number of heads, or of elements, which are not split further.
      dim: the dimension of a parameter.
    """

    units: int
    dim: int = 1


@dataclass(frozen=True)
class Once:
    """A module or parameter that is added to a sum over processes, on the first of them."""


@dataclass(frozen=True)
class OnHeads:
    """A module that maps split heads [..., heads, head_dim] to the same, such as a norm.

    It gets all heads unless its class is `ELEMENTWISE`, which means that it treats each vector of
    the last dimension by itself.

    Attributes:
      units: number of heads.
      repeats: as of `Columns`.
    """

    units: int
    repeats: bool = False


@dataclass(frozen=True)
class Split:
    """How a component is divided.

    Attributes:
      parts: by the name of a child module or parameter, in its component; None children may be
        named too.
      gathers: whether the outputs are parts of the last dimension, instead of summands.
      returns: the child module with split inputs whose output the component returns as it is, by
        which a sum may begin before all tokens are computed; None if there is no such child.
    """

    parts: Mapping[str, Columns | Rows | Once | OnHeads]
    gathers: bool = False
    returns: str | None = None


@runtime_checkable
class Divisible(Protocol):
    """A module that declares how its computation can be divided."""

    def own_split(self) -> Split: ...


LINEAR_DIMS: Mapping[str, Dims] = {
    "columns": {"weight": 0, "bias": 0},
    "rows": {"weight": 1, "bias": None},
}

"""How our parameters are stored in the tensors of a file, as pairs of views."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Piece(NamedTuple):
    """A part of one of our parameters, and where it is in a file.

    Attributes:
      name: of the file's tensor; `*` stands for the layer.
      shape: of the file's tensor.
      ours: a view of our parameter.
      theirs: gives the view of the file's tensor that equals `ours`, element by element.
    """

    name: str
    shape: tuple[int, ...]
    ours: Tensor
    theirs: Callable[[Tensor], Tensor]


@runtime_checkable
class Form(Protocol):
    """Maps one of our parameters to tensors of a file."""

    def pieces(self, ours: Tensor, /) -> Iterator[Piece]: ...


@dataclass(frozen=True)
class Same:
    """The same tensor under another name."""

    name: str

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Return one piece, the whole."""
        yield Piece(self.name, tuple(ours.shape), ours, lambda theirs: theirs)


@dataclass(frozen=True)
class Transposed:
    """Another form of the parameter with its last two dimensions transposed.

    A vector has no other way round. A name alone means the same tensor.
    """

    form: str | Form

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Return the pieces of the other form."""
        form = Same(self.form) if isinstance(self.form, str) else self.form
        yield from form.pieces(ours.mT if ours.dim() > 1 else ours)


@dataclass(frozen=True)
class Stacked:
    """Experts with a tensor each; `{expert}` in the name is the number."""

    name: str

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Return a piece for each expert."""
        for number, expert in enumerate(ours):
            name = self.name.replace("{expert}", str(number))
            yield Piece(name, tuple(expert.shape), expert, lambda theirs: theirs)


@dataclass(frozen=True)
class Joined:
    """Part number `index` of `of` equal parts of one tensor, in order.

    They lie so along the dimension `dim` of the tensor.
    """

    name: str
    index: int
    of: int
    dim: int = -1

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Return one piece, the whole."""
        size = ours.shape[self.dim]
        yield Piece(
            self.name,
            _scaled(ours, self.dim, self.of),
            ours,
            lambda theirs: theirs.narrow(self.dim, self.index * size, size),
        )


@dataclass(frozen=True)
class Interleaved:
    """Every `of`-th element of one tensor along its last dimension, from element `index` on."""

    name: str
    index: int
    of: int

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Return one piece, the whole."""
        shape = _scaled(ours, -1, self.of)
        yield Piece(self.name, shape, ours, lambda theirs: theirs[..., self.index :: self.of])


@dataclass(frozen=True)
class Paired:
    """Rotary rows, where the file pairs neighbors and we pair the two halves.

    Rows come in groups, one for a head: first `still` rows that do not turn, then `turning` rows.
    """

    name: str
    still: int
    turning: int

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Return the rows without rotation, if any, and the rotary ones."""
        shape = tuple(ours.shape)
        if self.still:
            yield Piece(self.name, shape, self._still(ours), self._still)
        halves = self._turning(ours).unflatten(1, (2, -1))
        yield Piece(self.name, shape, halves, self._halves_of_pairs)

    def _still(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, self.still + self.turning))[:, : self.still]

    def _turning(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, self.still + self.turning))[:, self.still :]

    def _halves_of_pairs(self, theirs: Tensor) -> Tensor:
        return self._turning(theirs).unflatten(1, (-1, 2)).transpose(1, 2)


def _scaled(ours: Tensor, dim: int, factor: int) -> tuple[int, ...]:
    """Return the shape of a tensor of which ours is one of `factor` parts along a dimension."""
    shape = list(ours.shape)
    shape[dim] *= factor
    return tuple(shape)

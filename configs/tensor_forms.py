"""Mappings between fidgpt parameters and the tensors of a file, as pairs of views."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Piece(NamedTuple):
    """A piece of a fidgpt parameter, and its location in a file.

    Attributes:
      name: name of the file's tensor; `*` stands for the layer.
      shape: shape of the file's tensor.
      ours: a view of the fidgpt parameter.
      theirs: returns the view of the file's tensor that equals `ours` elementwise.
    """

    name: str
    shape: tuple[int, ...]
    ours: Tensor
    theirs: Callable[[Tensor], Tensor]


@runtime_checkable
class Form(Protocol):
    """Maps a fidgpt parameter to tensors of a file."""

    def pieces(self, ours: Tensor, /) -> Iterator[Piece]: ...


@dataclass(frozen=True)
class Same:
    """An equal tensor with a different name."""

    name: str

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield the whole parameter as one piece."""
        yield Piece(self.name, tuple(ours.shape), ours, lambda theirs: theirs)


@dataclass(frozen=True)
class Transposed:
    """A form with the last two dimensions of the parameter transposed.

    Vectors are unchanged. A name stands for `Same`.
    """

    form: str | Form

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield the pieces of the transposed parameter."""
        form = Same(self.form) if isinstance(self.form, str) else self.form
        yield from form.pieces(ours.mT if ours.dim() > 1 else ours)


@dataclass(frozen=True)
class Stacked:
    """Stacked experts that the file stores separately; `{expert}` in the name is the index."""

    name: str

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield a piece per expert."""
        for number, expert in enumerate(ours):
            name = self.name.replace("{expert}", str(number))
            yield Piece(name, tuple(expert.shape), expert, lambda theirs: theirs)


@dataclass(frozen=True)
class Joined:
    """Part `index` of `of` equal, consecutive parts of a tensor along dimension `dim`."""

    name: str
    index: int
    of: int
    dim: int = -1

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield the whole parameter as one piece."""
        size = ours.shape[self.dim]
        yield Piece(
            self.name,
            _scaled(ours, self.dim, self.of),
            ours,
            lambda theirs: theirs.narrow(self.dim, self.index * size, size),
        )


@dataclass(frozen=True)
class Interleaved:
    """Every `of`-th element of a tensor along its last dimension, from element `index` on."""

    name: str
    index: int
    of: int

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield the whole parameter as one piece."""
        shape = _scaled(ours, -1, self.of)
        yield Piece(self.name, shape, ours, lambda theirs: theirs[..., self.index :: self.of])


@dataclass(frozen=True)
class Paired:
    """Rotary rows: the file pairs adjacent rows, and fidgpt pairs the two halves.

    There is a group of rows per head: first `still` rows without rotation, then `turning` rows.
    """

    name: str
    still: int
    turning: int

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield the rows without rotation, if any, and the rotary ones."""
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
    """Return the shape of a tensor of which a parameter is one of `factor` parts along `dim`."""
    shape = list(ours.shape)
    shape[dim] *= factor
    return tuple(shape)

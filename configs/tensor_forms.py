"""Mappings between fidgpt parameters and the tensors of a file, as pairs of views."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
    """A share of a tensor that joins several parameters along a dimension.

    Attributes:
      name: name of the file's tensor; `*` stands for the layer.
      index: which of the shares.
      of: number of equal shares, or the relative size of each: `(4, 1, 1)` if there are four times
        as many queries as keys and as values.
      dim: the dimension along which they are joined.
      groups: how often all shares repeat; `num_heads` if each head has its own.
    """

    name: str
    index: int
    of: int | Sequence[int]
    dim: int = -1
    groups: int = 1

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield the whole parameter as one piece.

        Raises:
          ValueError: the parameter cannot be such a share.
        """
        shares = (1,) * self.of if isinstance(self.of, int) else tuple(self.of)
        dim, share = self.dim % ours.dim(), shares[self.index]
        unit, rest = divmod(ours.shape[dim], self.groups * share)
        if rest:
            raise ValueError(
                f"{self.name}: {ours.shape[dim]} rows cannot be {self.groups} groups of {share} of "
                f"{sum(shares)} shares."
            )
        shape = list(ours.shape)
        shape[dim] = self.groups * sum(shares) * unit
        start, size = sum(shares[: self.index]) * unit, share * unit
        yield Piece(
            self.name,
            tuple(shape),
            ours.unflatten(dim, (self.groups, size)),
            lambda theirs: theirs.unflatten(dim, (self.groups, -1)).narrow(dim + 1, start, size),
        )


@dataclass(frozen=True)
class Interleaved:
    """Every `of`-th element of a tensor along its last dimension, from element `index` on."""

    name: str
    index: int
    of: int

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield the whole parameter as one piece."""
        shape = (*ours.shape[:-1], ours.shape[-1] * self.of)
        yield Piece(self.name, shape, ours, lambda theirs: theirs[..., self.index :: self.of])


@dataclass(frozen=True)
class AsRow:
    """A vector that the file has as a matrix of one row."""

    name: str

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield the whole parameter as one piece."""
        yield Piece(self.name, (1, *ours.shape), ours.unsqueeze(0), lambda theirs: theirs)


@dataclass(frozen=True)
class Paired:
    """Rotary rows: the file pairs adjacent rows, and fidgpt pairs the two halves.

    There is a group of rows per head: `still` rows without rotation, then `turning` rows, then
    `after` further rows without rotation.

    Attributes:
      form: of the whole parameter, apart from the pairs; a name stands for `Same`.
      still: rows before those that rotate.
      turning: rows that rotate.
      after: rows behind them.
      dim: the dimension of rows in the parameter.
    """

    form: str | Form
    still: int
    turning: int
    after: int = 0
    dim: int = 0

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield the rows without rotation, if any, and the rotary ones."""
        form = Same(self.form) if isinstance(self.form, str) else self.form
        for piece in form.pieces(ours):
            dim = self.dim % ours.dim() + piece.ours.dim() - ours.dim()  # a form may group rows
            for begin, end in ((0, self.still), (self.still + self.turning, self._per_head)):
                if begin < end:
                    yield _changed(piece, partial(self._rows, dim=dim, begin=begin, end=end))
            halves = self._turning(piece.ours, dim).unflatten(dim + 1, (2, -1))
            theirs = partial(self._halves_of_pairs, dim=dim, whole=piece.theirs)
            yield piece._replace(ours=halves, theirs=theirs)

    @property
    def _per_head(self) -> int:
        return self.still + self.turning + self.after

    def _rows(self, rows: Tensor, *, dim: int, begin: int, end: int) -> Tensor:
        return rows.unflatten(dim, (-1, self._per_head)).narrow(dim + 1, begin, end - begin)

    def _turning(self, rows: Tensor, dim: int) -> Tensor:
        return self._rows(rows, dim=dim, begin=self.still, end=self.still + self.turning)

    def _halves_of_pairs(
        self, theirs: Tensor, *, dim: int, whole: Callable[[Tensor], Tensor]
    ) -> Tensor:
        pairs = self._turning(whole(theirs), dim).unflatten(dim + 1, (-1, 2))
        return pairs.transpose(dim + 1, dim + 2)


def _changed(piece: Piece, view: Callable[[Tensor], Tensor]) -> Piece:
    """Return a piece with both sides seen through a view."""
    return piece._replace(ours=view(piece.ours), theirs=lambda theirs: view(piece.theirs(theirs)))

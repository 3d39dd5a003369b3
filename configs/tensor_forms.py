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
class Paired:
    """Rotary rows: the file pairs adjacent rows, and fidgpt pairs the two halves.

    There is a group of rows per head: `still` rows without rotation, then `turning` rows, then
    `after` further rows without rotation.
    """

    name: str
    still: int
    turning: int
    after: int = 0

    def pieces(self, ours: Tensor) -> Iterator[Piece]:
        """Yield the rows without rotation, if any, and the rotary ones."""
        shape = tuple(ours.shape)
        for begin, end in ((0, self.still), (self.still + self.turning, self._per_head)):
            if begin < end:
                rows = partial(self._rows, begin=begin, end=end)
                yield Piece(self.name, shape, rows(ours), rows)
        halves = self._turning(ours).unflatten(1, (2, -1))
        yield Piece(self.name, shape, halves, self._halves_of_pairs)

    @property
    def _per_head(self) -> int:
        return self.still + self.turning + self.after

    def _rows(self, rows: Tensor, *, begin: int, end: int) -> Tensor:
        return rows.unflatten(0, (-1, self._per_head))[:, begin:end]

    def _turning(self, rows: Tensor) -> Tensor:
        return self._rows(rows, begin=self.still, end=self.still + self.turning)

    def _halves_of_pairs(self, theirs: Tensor) -> Tensor:
        return self._turning(theirs).unflatten(1, (-1, 2)).transpose(1, 2)

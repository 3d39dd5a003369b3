"""What generation keeps of the tokens so far, so that each is computed once."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Cache:
    """Room for what every layer knows of the tokens so far, for rows of at most `capacity`.

    Layers that look back over a window keep so many tokens only, the newest in place of the
    oldest. A step looks at what is filled, so that a short text costs little.

    Args:
      capacity: tokens of a row, the prompt and what is written together.

    Raises:
      ValueError: the capacity is below 1; later, as more tokens come than that.
    """

    def __init__(self, *, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"{capacity=} leaves no room for a token: use 1 or more.")
        self.capacity = capacity
        self._rings: dict[int, RingBuffer] = {}
        self._layers: dict[int, LayerCache] = {}

    def layer(self, index: int) -> "LayerCache":
        """What layer `index` keeps; layers that share a module keep their own."""
        if index not in self._layers:
            self._layers[index] = LayerCache(self)
        return self._layers[index]

    def ring(self, window: int | None) -> "RingBuffer":
        """The columns of all parts that look `window` tokens back; None: at all."""
        room = self.capacity if window is None else min(window, self.capacity)
        if room not in self._rings:
            self._rings[room] = self._make_ring(room)
        return self._rings[room]

    @property
    def knows_all(self) -> bool:
        """Whether every layer that was asked keeps something of the tokens that it has seen."""
        return all(layer.tensors() for layer in self._layers.values())

    def bytes(self) -> int:
        """Memory of everything that is kept."""
        kept = [tensor for layer in self._layers.values() for tensor in layer.tensors()]
        kept += [tensor for ring in self._rings.values() for tensor in ring.columns]
        return sum(tensor.numel() * tensor.element_size() for tensor in kept)

    def _make_ring(self, room: int) -> "RingBuffer":
        return RingBuffer(room, capacity=self.capacity)


class StaticCache(Cache):
    """The same with shapes that stay: every step looks at the whole room, empty columns hidden.

    A step of one token can then be compiled once for all. Where the next token goes is a number
    on the device, so that nothing is checked: more tokens than `capacity` take the place of the
    oldest.
    """

    def _make_ring(self, room: int) -> "RingBuffer":
        return StaticRing(room)


class LayerCache:
    """What the parts of one layer keep, each under itself."""

    def __init__(self, cache: Cache) -> None:
        self.ring = cache.ring
        self._kept: dict[object, list[Tensor]] = {}

    def of(self, owner: object) -> list[Tensor]:
        """The tensors that `owner` keeps; none before its first token."""
        return self._kept.setdefault(owner, [])

    def tensors(self) -> list[Tensor]:
        """All that is kept."""
        return [tensor for kept in self._kept.values() for tensor in kept]


class CacheUpdate:
    """What one pass does to all tensors that keep the same tokens: writes new ones, shows all.

    The last but one dimension of a tensor is the token, and its column is the token's number
    modulo the room.

    Attributes:
      is_first: whether no token came before.
      has_gaps: whether columns are shown in which no token is.
    """

    has_gaps = False

    def __init__(self, *, room: int, before: int, count: int) -> None:
        self._room, self._before, self._count = room, before, count
        self.is_first = before == 0

    def extend(
        self, kept: list[Tensor], new: Sequence[Tensor], *, empty: int = 0
    ) -> Sequence[Tensor]:
        """Keeps the new parts, and returns all that a new token may look at.

        Args:
          kept: of the tokens before, which is written to; room is made on the first turn.
          new: [..., seq, size] of this pass's tokens.
          empty: what stands where no token is.
        """
        if self.is_first:
            kept += [part.new_empty(_shape(part, self._room)) for part in new]
            self._write(kept, new)
            return new
        if self._count == 1 or self._before + self._count <= self._room:
            self._write(kept, new)
            return self._shown(kept, self._before + self._count)
        # The newest take columns of tokens that the others still look at.
        old = self._shown(kept, self._before)
        whole = [torch.cat(pair, dim=-2) for pair in zip(old, new, strict=True)]
        self._write(kept, new)
        return whole

    def _shown(self, kept: list[Tensor], count: int) -> list[Tensor]:
        """In the order of columns, which is not that of time once the ring is round."""
        return [tensor.narrow(-2, 0, min(count, self._room)) for tensor in kept]

    def _write(self, kept: list[Tensor], new: Sequence[Tensor]) -> None:
        last = min(self._count, self._room)
        begin = (self._before + self._count - last) % self._room
        first = min(last, self._room - begin)
        for tensor, part in zip(kept, new, strict=True):
            skipped = self._count - last
            tensor.narrow(-2, begin, first).copy_(part.narrow(-2, skipped, first))
            if first < last:
                rest = part.narrow(-2, skipped + first, last - first)
                tensor.narrow(-2, 0, last - first).copy_(rest)


class StaticTurn(CacheUpdate):
    """The same by columns that only the device knows."""

    has_gaps = True

    def __init__(self, *, columns: Tensor, room: int, is_first: bool) -> None:
        self._columns, self._room, self.is_first = columns, room, is_first

    def extend(
        self, kept: list[Tensor], new: Sequence[Tensor], *, empty: int = 0
    ) -> Sequence[Tensor]:
        """Keeps the new parts, and returns the whole room, or what it was with them behind it."""
        if self.is_first:
            kept += [part.new_full(_shape(part, self._room), empty) for part in new]
        shown: Sequence[Tensor] = kept
        if new[0].shape[-2] > 1:
            shown = [torch.cat(pair, dim=-2) for pair in zip(kept, new, strict=True)]
        for tensor, part in zip(kept, new, strict=True):
            tensor.index_copy_(-2, self._columns, part[..., -len(self._columns) :, :])
        return new if self.is_first else shown


class RingBuffer:
    """Which tokens stand in the columns of all tensors with the same room.

    Args:
      room: columns.
      capacity: tokens that may come in all.
    """

    def __init__(self, room: int, *, capacity: int) -> None:
        self.room = room
        self.columns: list[Tensor] = []
        self._capacity = capacity
        self._seen = 0

    def turn(self, positions: Tensor) -> CacheUpdate:
        """What a pass over tokens at `positions` [rows, seq] does."""
        count = positions.shape[1]
        if self._seen + count > self._capacity:
            raise ValueError(
                f"the cache has room for {self._capacity} tokens of a row, and "
                f"{self._seen} + {count} have come: make it with a larger capacity."
            )
        turn = CacheUpdate(room=self.room, before=self._seen, count=count)
        self._seen += count
        return turn


class StaticRing(RingBuffer):
    """The same, which counts on the device."""

    def __init__(self, room: int) -> None:
        super().__init__(room, capacity=room)
        self._next: Tensor | None = None

    def turn(self, positions: Tensor) -> CacheUpdate:
        """What a pass over tokens at `positions` [rows, seq] does."""
        count, is_first = positions.shape[1], self._next is None
        if self._next is None:
            self._next = torch.zeros((), dtype=torch.long, device=positions.device)
        steps = torch.arange(count, device=positions.device)[-self.room :]
        columns = (self._next + steps) % self.room
        self._next += count
        return StaticTurn(columns=columns, room=self.room, is_first=is_first)


def _shape(part: Tensor, room: int) -> tuple[int, ...]:
    return *part.shape[:-2], room, part.shape[-1]

"""Caches for generation: keys and values of attentions, and states of recurrent layers."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fidgpt.ranges import require_size


def state_key(owner: object) -> tuple[str, object]:
    """Return the key of a recurrent layer's state in `Cache.layer`, beside its keys and values."""
    return ("state", owner)


def is_state_key(key: object) -> bool:
    """Return whether a key of `Cache.layer` is one of `state_key`."""
    return isinstance(key, tuple) and key[0] == "state"


class CachedRow(NamedTuple):
    """What a cache holds of one row, without padding.

    Attributes:
      length: number of its tokens.
      layers: by layer and module, the cached tensors [1, ..., seq, size] in the order of tokens, or
        a state; and the number of columns that the layer keeps, None for a state.
    """

    length: int
    layers: dict[tuple[int, object], tuple[list[Tensor], int | None]]

    def first(self, length: int) -> "CachedRow | None":
        """Return the row after its first tokens; None if later ones have overwritten those."""
        if length == self.length:
            return self
        kept = [(tensor, slots) for tensors, slots in self.layers.values() for tensor in tensors]
        if any(slots is None or tensor.shape[-2] < self.length for tensor, slots in kept):
            return None
        layers = {
            key: ([tensor.narrow(-2, 0, length) for tensor in tensors], slots)
            for key, (tensors, slots) in self.layers.items()
        }
        return CachedRow(length, layers)


class Cache:
    """Keys and values, or other per-token tensors of the layers, of the tokens so far.

    A recurrent layer keeps a state of fixed size in their place. Modules use the cache through
    `AttentionContext`: `update_cache` for what grows by the token, `state` and `keep_state` for
    what does not.

    Layers with a sliding window use a ring buffer of the window's size: the column of a token is
    its number modulo that size. A step reads only filled columns, so short texts are cheap.

    Args:
      capacity: maximum number of tokens per row, of prompt and generated text together.

    Raises:
      ValueError: the capacity is below 1; in `advance`, the tokens exceed it.
    """

    def __init__(self, *, capacity: int) -> None:
        require_size(capacity=capacity)
        self.capacity = capacity
        self._length = 0
        self._positions: dict[int, list[Tensor]] = {}
        self._layers: dict[int, dict[object, list[Tensor]]] = {}

    def slots(self, window: int | None) -> int:
        """Return the number of tokens that a layer with this window keeps."""
        return self.capacity if window is None else min(window, self.capacity)

    def layer(self, index: int) -> dict[object, list[Tensor]]:
        """Return the cached tensors of a layer, by module: layers may share modules."""
        return self._layers.setdefault(index, {})

    def positions_of(self, window: int | None) -> list[Tensor]:
        """Return the cached positions, and documents if any, for layers with this window."""
        return self._positions.setdefault(self.slots(window), [])

    @property
    def is_complete(self) -> bool:
        """Whether every layer that ran so far uses the cache."""
        return all(any(layer.values()) for layer in self._layers.values())

    def bytes(self) -> int:
        """Return the size of all cached tensors, in bytes."""
        groups = [*self._positions.values()]
        groups += [kept for layer in self._layers.values() for kept in layer.values()]
        return sum(tensor.numel() * tensor.element_size() for kept in groups for tensor in kept)

    def advance(self, positions: Tensor) -> int:
        """Count the tokens of a pass, and return how many preceded them, for `extend`.

        Args:
          positions: positions of the new tokens, [rows, seq].

        Raises:
          ValueError: the tokens exceed the capacity.
        """
        before, count = self._length, positions.shape[1]
        if before + count > self.capacity:
            raise ValueError(
                f"{before} + {count} tokens exceed the cache's capacity of {self.capacity} tokens "
                "per row; use a larger capacity."
            )
        self._length += count
        return before

    def row(self, index: int, *, begin: int = 0) -> CachedRow | None:
        """Return a copy of a row of the cache; the row's columns before `begin` are padding.

        None if the cache is not used, or not by every layer.
        """
        if not self._length or not self.is_complete:
            return None
        layers: dict[tuple[int, object], tuple[list[Tensor], int | None]] = {}
        for number, layer in self._layers.items():
            for owner, kept in layer.items():
                tensors = [tensor[index : index + 1] for tensor in kept]
                slots = None if is_state_key(owner) else kept[0].shape[-2]
                if slots is not None:
                    empty = max(0, begin - max(0, self._length - slots))
                    tensors = [_in_order(x, self._length)[..., empty:, :] for x in tensors]
                layers[number, owner] = [tensor.clone() for tensor in tensors], slots
        return CachedRow(self._length - begin, layers)

    def fill(self, rows: Sequence[CachedRow], *, positions: Sequence[Tensor]) -> None:
        """Fill an empty cache with rows of different lengths, padded in front.

        Args:
          rows: of caches of the same model and capacity.
          positions: positions [rows, seq], and documents if any, of all columns; negative for
            padding.
        """
        width = max(row.length for row in rows)
        self.advance(positions[0])
        for (number, owner), (_, slots) in rows[0].layers.items():
            several = zip(*(row.layers[number, owner][0] for row in rows), strict=True)
            kept = self.layer(number).setdefault(owner, [])
            if slots is None:
                self.keep(kept, [torch.cat(tensors) for tensors in several])
                continue
            padded = [torch.cat([_padded(x, width) for x in tensors]) for tensors in several]
            self.extend(kept, padded, window=slots, before=0)
            if not (places := self.positions_of(slots)):
                new = [numbers.unsqueeze(-1) for numbers in positions]
                self.extend(places, new, window=slots, before=0)

    def keep(self, kept: list[Tensor], state: Sequence[Tensor]) -> None:
        """Replace a state of fixed size.

        Args:
          kept: the state before, empty at first; overwritten in place, as compiled steps need.
          state: the new state, with the shapes and number formats of the first one.
        """
        if not kept:
            kept += [part.clone() for part in state]
            return
        for tensor, part in zip(kept, state, strict=True):
            tensor.copy_(part)

    def extend(
        self,
        kept: list[Tensor],
        new: Sequence[Tensor],
        *,
        window: int | None,
        before: int,
    ) -> Sequence[Tensor]:
        """Write the tensors of the new tokens to the cache; return the tensors of all keys.

        Args:
          kept: cached tensors, [..., num_slots, size]; a list that is filled in the first pass.
          new: tensors of the new tokens, [..., seq, size].
          window: the layer's window in tokens; None for full attention.
          before: result of `advance` in this pass.
        """
        num_slots, count = self.slots(window), new[0].shape[-2]
        if not kept:
            kept += [part.new_empty(_shape(part, num_slots)) for part in new]
            _write(kept, new, before, num_slots)
            return new
        if count == 1 or before + count <= num_slots:
            _write(kept, new, before, num_slots)
            return _filled(kept, before + count)
        # The new tokens overwrite columns that earlier ones among them still attend to.
        old = _filled(kept, before)
        joined = [torch.cat(pair, dim=-2) for pair in zip(old, new, strict=True)]
        _write(kept, new, before, num_slots)
        return joined


class RewindableCache(Cache):
    """A cache from which the latest tokens can be removed, as speculative decoding does.

    A ring buffer has overwritten older tokens then, and a recurrent state has no older one: `mark`
    saves them before.
    """

    def __init__(self, *, capacity: int) -> None:
        super().__init__(capacity=capacity)
        self._marked = 0
        self._saved: list[tuple[Tensor, Tensor, bool]] = []

    def mark(self, count: int) -> None:
        """Save what the next `count` tokens overwrite."""
        self._marked, self._saved = self._length, []
        for kept in self._positions.values():
            self._save(kept, count, is_state=False)
        for layer in self._layers.values():
            for owner, kept in layer.items():
                self._save(kept, count, is_state=is_state_key(owner))

    def rewind(self, length: int) -> int:
        """Remove the tokens after the first `length`, of those since `mark`.

        Returns:
          The number of tokens that are left: `length`, or that at `mark` if there are recurrent
          states, or windows shorter than the tokens that were read since.
        """
        count = self._length - self._marked
        if length >= self._length:
            return self._length
        if any(is_state or kept.shape[-2] < count for kept, _, is_state in self._saved):
            length = self._marked
        for kept, saved, is_state in self._saved:
            if is_state:
                kept.copy_(saved)
                continue
            num_slots = kept.shape[-2]
            begin, end = length - self._marked, min(count, num_slots)
            columns = _ring(self._marked + begin, end - begin, num_slots, kept.device)
            kept.index_copy_(-2, columns, saved[..., begin:end, :])
        self._length = length
        return length

    def _save(self, kept: list[Tensor], count: int, *, is_state: bool) -> None:
        for tensor in kept:
            if is_state:
                self._saved.append((tensor, tensor.clone(), True))
            elif self._length + count > (num_slots := tensor.shape[-2]):
                columns = _ring(self._length, min(count, num_slots), num_slots, tensor.device)
                self._saved.append((tensor, tensor.index_select(-2, columns), False))


def _ring(begin: int, count: int, num_slots: int, device: torch.device) -> Tensor:
    """Return the columns of consecutive tokens in a ring buffer."""
    return torch.arange(begin, begin + count, device=device) % num_slots


def _filled(kept: list[Tensor], count: int) -> list[Tensor]:
    """Return the columns that hold tokens, in the order of columns, not of time."""
    return [tensor.narrow(-2, 0, min(count, tensor.shape[-2])) for tensor in kept]


def _in_order(kept: Tensor, count: int) -> Tensor:
    """Return the columns of a ring buffer that hold tokens, in the order of time."""
    num_slots = kept.shape[-2]
    return kept.narrow(-2, 0, count) if count <= num_slots else kept.roll(-(count % num_slots), -2)


def _padded(tensor: Tensor, width: int) -> Tensor:
    """Return a tensor with empty columns in front."""
    return F.pad(tensor, (0, 0, width - tensor.shape[-2], 0))


def _write(kept: list[Tensor], new: Sequence[Tensor], before: int, num_slots: int) -> None:
    count = new[0].shape[-2]
    last = min(count, num_slots)
    begin = (before + count - last) % num_slots
    first = min(last, num_slots - begin)
    for tensor, part in zip(kept, new, strict=True):
        skipped = count - last
        tensor.narrow(-2, begin, first).copy_(part.narrow(-2, skipped, first))
        if first < last:
            tensor.narrow(-2, 0, last - first).copy_(part.narrow(-2, skipped + first, last - first))


def _shape(part: Tensor, num_slots: int) -> tuple[int, ...]:
    return *part.shape[:-2], num_slots, part.shape[-1]

"""Transforms of sequences."""

import hashlib
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64
from numpy.typing import NDArray
from torch import Tensor

from fidgpt.data.errors import DataError
from fidgpt.data.order import derive_key
from fidgpt.data.tokenizers import Tokenizer


@runtime_checkable
class Transform(Protocol):
    """Changes sequences; a pure function of them, their numbers and the seed."""

    def check(self, tokenizer: Tokenizer, /) -> None:
        """Raises DataError where it cannot work with a tokenizer."""
        ...

    def identity(self) -> str:
        """A text that changes whenever it would change sequences in another way."""
        ...

    def __call__(
        self,
        rows: NDArray[np.int64],
        /,
        *,
        indices: NDArray[np.int64],
        seed: int,
        tokenizer: Tokenizer,
    ) -> NDArray[np.int64]:
        """Rows of the same length, [len(indices), seq_len + 1].

        Args:
          rows: token ids; negative where they are masked (see `fidgpt.data.mask_loss`).
          indices: the number of each row, counted from the beginning of the run.
          seed: of the stream.
          tokenizer: that the tokens come from.
        """
        ...


Tokens = TypeVar("Tokens", Tensor, NDArray[np.int64])


def mask_loss(tokens: Tokens) -> Tokens:
    """Return the tokens masked out of the loss: each is stored as its complement, `-1 - token`."""
    return ~tokens


def token_ids(batch: Tokens) -> Tokens:
    """Return the token ids of a batch, masked or not."""
    return batch ^ (batch >> 63)


def inputs_and_targets(
    batch: Int64[Tensor, "rows window"], *, all_counted: bool | None = None
) -> tuple[Int64[Tensor, "rows seq"], Int64[Tensor, "rows seq"], Bool[Tensor, "rows seq"] | None]:
    """Return the inputs, the targets and the loss mask of a batch; no mask if all targets count.

    On the meta device every target counts.

    Args:
      batch: token ids, some of them perhaps masked.
      all_counted: the result of `all_in_loss(batch)`, if it is known already.
    """
    if all_in_loss(batch) if all_counted is None else all_counted:
        return batch[:, :-1], batch[:, 1:], None
    tokens = token_ids(batch)
    return tokens[:, :-1], tokens[:, 1:], batch[:, 1:] >= 0


def all_in_loss(batch: Int64[Tensor, "rows window"]) -> bool:
    """Whether no token of a batch is masked; synchronizes with the device of the batch."""
    return batch.is_meta or not (batch < 0).any()


def count_loss_targets(batch: Int64[Tensor, "rows window"]) -> int:
    """Count the targets of a batch that are in the loss."""
    targets = batch[:, 1:]
    return targets.numel() if batch.is_meta else int((targets >= 0).sum())


# Shorter texts stay as they are: three or four of their tokens make room for the special ones.
_MIN_TOKENS = 16
_NUMBERS = 4  # that each text draws


class FillInTheMiddle:
    """Texts are cut at two random places, and the middle is moved behind the rest, to be filled in.

    Prefix, suffix, middle become `PRE prefix SUF suffix MID middle` (PSM) or `PRE SUF suffix MID
    prefix middle` (SPM), an end of text behind it (Bavarian et al. 2022, arXiv:2207.14255: the
    transformation of section 3 at the level of contexts, section 4.4, and SPM as in its appendix
    D). A text is what stands between ends of text in a sequence. It keeps its length: its last
    tokens, three or, where the sequence cuts it off, four, make room for the special ones. Cuts
    are between tokens. Texts of less than 16 tokens stay as they are. What is drawn depends on the
    seed and on the number of the sequence.

    Args:
      rate: probability that a text is changed.
      spm_rate: share of those that are changed to SPM.
      prefix: special token before the prefix, by its name or its id.
      suffix: the one before the suffix.
      middle: the one before the middle.

    Raises:
      DataError: a rate is no probability.
    """

    def __init__(
        self,
        *,
        rate: float = 0.5,
        spm_rate: float = 0.5,
        prefix: str | int = "<|fim_prefix|>",
        suffix: str | int = "<|fim_suffix|>",
        middle: str | int = "<|fim_middle|>",
    ) -> None:
        self.check_arguments(rate=rate, spm_rate=spm_rate)
        self.rate = rate
        self.spm_rate = spm_rate
        self.prefix = prefix
        self.suffix = suffix
        self.middle = middle

    @staticmethod
    def check_arguments(*, rate: float, spm_rate: float) -> None:
        """Raises DataError unless both are probabilities."""
        for name, value in locals().items():
            if not 0 <= value <= 1:
                raise DataError(f"{name}={value} is no probability: use 0 to 1.")

    def check(self, tokenizer: Tokenizer) -> None:
        """Raises DataError where the tokenizer lacks one of the special tokens."""
        self._special(tokenizer)

    def identity(self) -> str:
        """The rates and the tokens."""
        tokens = f"{self.prefix!r} {self.suffix!r} {self.middle!r}"
        return f"fill in the middle {self.rate} {self.spm_rate} {tokens}"

    def __call__(
        self,
        rows: NDArray[np.int64],
        *,
        indices: NDArray[np.int64],
        seed: int,
        tokenizer: Tokenizer,
    ) -> NDArray[np.int64]:
        """The rows with some of their texts changed, each of the same length as before."""
        special = self._special(tokenizer)
        changed = rows.copy()
        for row, index in zip(changed, indices.tolist(), strict=True):
            ends = np.flatnonzero(token_ids(row) == tokenizer.end_of_text)
            begins = [0, *(ends + 1).tolist()]
            stops = [*ends.tolist(), len(row)]
            drawn = _uniform(seed, index, count=len(begins))
            for begin, stop, numbers in zip(begins, stops, drawn, strict=True):
                if stop - begin < _MIN_TOKENS or numbers[0] >= self.rate:
                    continue
                if stop == len(row):
                    stop -= 1
                    row[stop] = tokenizer.end_of_text
                text = row[begin:stop]
                text[:] = self._moved(text[: -len(special)].copy(), special, numbers)
        return changed

    def _moved(
        self, text: NDArray[np.int64], special: list[int], numbers: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """The text and the special tokens in the order of PSM or SPM."""
        first, second = sorted((numbers[2:] * (len(text) + 1)).astype(np.int64).tolist())
        before, middle, after = text[:first], text[first:second], text[second:]
        begin, turn, fill = ([token] for token in special)
        if numbers[1] < self.spm_rate:
            return np.concatenate([begin, turn, after, fill, before, middle])
        return np.concatenate([begin, before, turn, after, fill, middle])

    def _special(self, tokenizer: Tokenizer) -> list[int]:
        known = tokenizer.special_ids()
        return [
            _found(token, known, tokenizer) for token in (self.prefix, self.suffix, self.middle)
        ]


def _found(token: str | int, known: dict[str, int], tokenizer: Tokenizer) -> int:
    """The id of a token."""
    if isinstance(token, int) and 0 <= token < tokenizer.vocab_size:
        return token
    if isinstance(token, str) and token in known:
        return known[token]
    raise DataError(
        f"The tokenizer has no special token {token!r} to fill in the middle; it has "
        f"{', '.join(list(known)[:12]) or 'none'}, and {tokenizer.vocab_size} tokens in all.\n"
        "Name three that it has, or one that is trained with them: "
        f"BPETokenizer(special_tokens=[{token!r}, ...])."
    )


def _uniform(seed: int, index: int, *, count: int) -> NDArray[np.float64]:
    """Numbers from 0 to below 1 for each of some texts, [count, 4]."""
    data = hashlib.shake_256(derive_key(seed, "fim", index)).digest(8 * _NUMBERS * count)
    whole = np.frombuffer(data, dtype="<u8") >> np.uint64(11)
    return (whole / float(1 << 53)).reshape(count, _NUMBERS)

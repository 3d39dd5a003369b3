"""Transforms of sequences, such as fill-in-the-middle."""

import hashlib
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from fidgpt.data.batches import Batch
from fidgpt.data.errors import DataError
from fidgpt.data.order import derive_key
from fidgpt.data.tokenizers import Tokenizer

__all__ = [
    "FillInTheMiddle",
    "Transform",
]


@runtime_checkable
class Transform(Protocol):
    """A transform of sequences: a pure function of them, their numbers and the seed."""

    def check(self, tokenizer: Tokenizer, /) -> None:
        """Raise DataError if the tokenizer lacks what the transform needs."""

    def identity(self) -> str:
        """Return a string that changes whenever the results would."""
        ...

    def __call__(
        self,
        rows: Batch,
        /,
        *,
        indices: NDArray[np.int64],
        seed: int,
        tokenizer: Tokenizer,
    ) -> Batch:
        """Return transformed rows of the same length.

        Args:
          rows: sequences, [len(indices), seq_len + 1] tokens.
          indices: number of each row, counting from the start of the run.
          seed: seed of the stream.
          tokenizer: tokenizer of the corpus.
        """
        ...


# Shorter texts are unchanged: the special tokens would replace too much of them.
_MIN_TOKENS = 16
_NUMBERS = 4  # random numbers per text


@dataclass(eq=False, kw_only=True)
class FillInTheMiddle:
    """Cut texts at two random positions and move the middle to the end, to be filled in.

    Prefix, suffix, middle become `PRE prefix SUF suffix MID middle` (PSM) or `PRE SUF suffix MID
    prefix middle` (SPM), followed by an end of text (Bavarian et al. 2022, arXiv:2207.14255: the
    transformation of section 3 at the level of contexts, section 4.4, and SPM as in its appendix
    D). Texts are delimited by end-of-text tokens and keep all of their tokens. The special tokens
    move what follows; what then exceeds the sequence is cut off at its end, as the sequence cuts
    texts anyway. Of a text that is cut, what fits is transformed, with an end of text after it.
    Cuts are between tokens. Texts of fewer than 16 tokens are unchanged. Random numbers depend on
    the seed and the number of the sequence.

    Args:
      rate: probability of transforming a text.
      spm_rate: fraction of SPM among the transformed texts.
      prefix: name or id of the special token before the prefix.
      suffix: name or id of the special token before the suffix.
      middle: name or id of the special token before the middle.

    Raises:
      DataError: a rate is not from 0 to 1.
    """

    rate: float = 0.5
    spm_rate: float = 0.5
    prefix: str | int = "<|fim_prefix|>"
    suffix: str | int = "<|fim_suffix|>"
    middle: str | int = "<|fim_middle|>"

    def __post_init__(self) -> None:
        for name, value in {"rate": self.rate, "spm_rate": self.spm_rate}.items():
            if not 0 <= value <= 1:
                raise DataError(f"{name}={value} must be a probability, from 0 to 1.")

    def check(self, tokenizer: Tokenizer) -> None:
        """Raise DataError if the tokenizer lacks one of the special tokens."""
        self._special(tokenizer)

    def identity(self) -> str:
        """Return the rates and the special tokens."""
        tokens = f"{self.prefix!r} {self.suffix!r} {self.middle!r}"
        return f"fill in the middle, whole texts {self.rate} {self.spm_rate} {tokens}"

    def __call__(
        self,
        rows: Batch,
        *,
        indices: NDArray[np.int64],
        seed: int,
        tokenizer: Tokenizer,
    ) -> Batch:
        """Return the rows with some of their texts transformed; added tokens count in the loss."""
        window = rows.tokens.shape[1]
        # Each row with the special tokens behind it; `order` selects the tokens of the new row.
        added = torch.tensor([[*self._special(tokenizer), tokenizer.end_of_text]])
        extended = Batch.cat([rows, Batch(added.expand(len(rows.tokens), -1))], dim=1)
        *special, end_of_text = range(window, window + added.shape[1])
        is_end = (rows.tokens == tokenizer.end_of_text).numpy()
        order = np.tile(np.arange(window), (len(is_end), 1))
        for row, ends, index in zip(order, is_end, indices.tolist(), strict=True):
            texts = [text for text in np.split(row.copy(), np.flatnonzero(ends) + 1) if len(text)]
            drawn, filled = _uniform(seed, index, count=len(texts)), 0
            for text, numbers in zip(texts, drawn, strict=True):
                end = [end_of_text]
                is_whole = ends[text[-1]]
                if is_whole:
                    text, end = text[:-1], text[-1:]
                room = window - filled
                fits = min(len(text), room - len(special) - 1)
                if len(text) >= _MIN_TOKENS and numbers[0] < self.rate and fits > 0:
                    text, is_whole = self._moved(text[:fits], special, numbers), True
                if is_whole:
                    text = np.concatenate([text, end])
                row[filled : filled + len(text)] = text[:room]
                filled = min(filled + len(text), window)
        return extended.map(
            lambda x: torch.from_numpy(np.take_along_axis(x.numpy(), order, axis=1))
        )

    def _moved(
        self, text: NDArray[np.int64], special: list[int], numbers: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return the text and the special tokens in the order of PSM or SPM."""
        first, second = sorted((numbers[2:] * (len(text) + 1)).astype(np.int64).tolist())
        before, middle, after = text[:first], text[first:second], text[second:]
        prefix, suffix, fill = ([token] for token in special)
        if numbers[1] < self.spm_rate:
            return np.concatenate([prefix, suffix, after, fill, before, middle])
        return np.concatenate([prefix, before, suffix, after, fill, middle])

    def _special(self, tokenizer: Tokenizer) -> list[int]:
        ids = tokenizer.special_ids()
        return [_id_of(token, ids, tokenizer) for token in (self.prefix, self.suffix, self.middle)]


def _id_of(token: str | int, ids: dict[str, int], tokenizer: Tokenizer) -> int:
    """Return the id of a token."""
    if isinstance(token, int) and 0 <= token < tokenizer.vocab_size:
        return token
    if isinstance(token, str) and token in ids:
        return ids[token]
    raise DataError(
        f"The tokenizer has no special token {token!r} for fill-in-the-middle, but "
        f"{', '.join(list(ids)[:12]) or 'none'}.\nName three that it has, or train one with them: "
        f"BPETokenizer(special_tokens=[{token!r}, ...])."
    )


def _uniform(seed: int, index: int, *, count: int) -> NDArray[np.float64]:
    """Return uniform random numbers in [0, 1): [count, 4], a row per text."""
    data = hashlib.shake_256(derive_key(seed, "fim", index)).digest(8 * _NUMBERS * count)
    whole = np.frombuffer(data, dtype="<u8") >> np.uint64(11)
    return (whole / float(1 << 53)).reshape(count, _NUMBERS)

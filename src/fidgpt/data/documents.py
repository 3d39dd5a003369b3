"""Documents, and which of their tokens count in the loss."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError
from fidgpt.data.tokenizers import Tokenizer

__all__ = ["EncodedDocument", "MarkedText", "MaskedDocument"]


class EncodedDocument(NamedTuple):
    """The tokens of a document, without an end of text.

    Attributes:
      tokens: token ids.
      counted: whether each token counts in the loss; None if all do.
      counts_end: whether the end of text behind it counts; None if it does as the last token does.
      event: what was done to the document, such as shortening it; empty for nothing.
    """

    tokens: NDArray[np.uint32]
    counted: NDArray[np.bool_] | None = None
    counts_end: bool | None = None
    event: str = ""

    @property
    def is_dropped(self) -> bool:
        """Whether the document is left out."""
        return bool(self.event) and not len(self.tokens)


@runtime_checkable
class MaskedDocument(Protocol):
    """A document that knows which of its tokens count in the loss."""

    @property
    def text(self) -> str:
        """The text by which it is measured, held out, and sampled for the tokenizer."""
        ...

    def encode(self, tokenizer: Tokenizer, /) -> EncodedDocument:
        """Return its tokens; called by several threads."""
        ...


# All tokens of a text count.
Document = str | MaskedDocument


@dataclass(frozen=True)
class MarkedText:
    """A text with spans that count in the loss; a token counts that has a character in one.

    Attributes:
      text: the text.
      spans: first character of each span, and the one after its last.
    """

    text: str
    spans: Sequence[Sequence[int]]

    def encode(self, tokenizer: Tokenizer) -> EncodedDocument:
        """Return the tokens of the whole text.

        Raises:
          DataError: the bytes of the tokens differ from the bytes of the text.
        """
        is_marked = np.zeros(len(self.text), dtype=np.int64)
        for begin, stop in self.spans:
            is_marked[begin:stop] = 1
        tokens, counted = encode_marked(self.text, is_marked, tokenizer)
        begin = begin_ids(tokenizer)
        is_begin = np.zeros(len(begin), dtype=np.bool_)
        return EncodedDocument(np.concatenate([begin, tokens]), np.concatenate([is_begin, counted]))


def encode_marked(
    text: str, is_marked: NDArray[np.int64], tokenizer: Tokenizer
) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Return the tokens of a text, and whether each has a marked character.

    Args:
      text: the text.
      is_marked: 1 for each character that is marked, otherwise 0.
      tokenizer: encodes it.

    Raises:
      DataError: the bytes of the tokens differ from the bytes of the text.
    """
    tokens = tokenizer.encode_batch([text])[0]
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    utf8_sizes = np.ones(len(codes), dtype=np.int64) + sum(
        (codes > last).astype(np.int64) for last in (0x7F, 0x7FF, 0xFFFF)
    )
    edges = _sums(_token_sizes(tokenizer)[tokens])
    before = int(edges[-1] - utf8_sizes.sum())  # bytes in front of the text
    if before not in (0, len(tokenizer.prefix)):
        raise DataError(
            f"The tokenizer changes the text {text:.40}..., so that its spans cannot be found "
            "among the tokens.\nUse one that encodes any text losslessly."
        )
    marks = np.repeat(is_marked, utf8_sizes)
    marked_bytes = _sums(np.concatenate([np.zeros(before, dtype=np.int64), marks]))
    return tokens, np.diff(marked_bytes[edges]) > 0


def text_of(document: Document) -> str:
    """Return the text of a document."""
    return document if isinstance(document, str) else document.text


def encode_document(document: Document, tokenizer: Tokenizer) -> EncodedDocument:
    """Return the tokens of a document, a text's with what the tokenizer puts in front of it."""
    if isinstance(document, str):
        ids = tokenizer.encode_batch([document])[0]
        return EncodedDocument(np.concatenate([begin_ids(tokenizer), ids]))
    return document.encode(tokenizer)


def begin_ids(tokenizer: Tokenizer) -> NDArray[np.uint32]:
    """Return the ids in front of a text of its own, where no end of text does that already."""
    begin = tokenizer.begin_of_text
    ids = [] if begin is None or begin == tokenizer.end_of_text else [begin]
    return np.array(ids, dtype=np.uint32)


@functools.lru_cache(maxsize=1)
def _token_sizes(tokenizer: Tokenizer) -> NDArray[np.int64]:
    return np.array(tokenizer.token_bytes(), dtype=np.int64)


def _sums(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of the first n sizes for each n from 0 on."""
    return np.concatenate([[0], np.cumsum(sizes)])

"""What a tokenizer is, how it is described before it exists, and text as it streams."""

import codecs
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError

END_OF_TEXT = "<|endoftext|>"


@runtime_checkable
class Tokenizer(Protocol):
    """A tokenizer that exists: text to token ids and back, exactly."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        ...

    @property
    def end_of_text(self) -> int:
        """The id that follows every document."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end of text."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text; may be called from several threads at once."""
        ...

    def token_values(self) -> list[bytes]:
        """The bytes that each id stands for; special tokens stand for none."""
        ...

    def special_ids(self) -> dict[str, int]:
        """The ids of the special tokens, that of the end of text among them, by their names."""
        ...

    def token_bytes(self) -> list[int]:
        """The number of UTF-8 bytes that each id stands for; 0 for special tokens."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; bytes that are no valid UTF-8 become U+FFFD."""
        ...

    def save(self, path: str | Path) -> None:
        """Write a `tokenizer.json` that `load_tokenizer` and the `tokenizers` library read."""
        ...


@runtime_checkable
class TokenizerSpec(Protocol):
    """A tokenizer that is still to be trained, loaded or taken as it is."""

    @property
    def sample_bytes(self) -> int:
        """How much text `build` wants to see; 0 when it needs none."""
        ...

    def identity(self) -> str:
        """A text that changes whenever `build` would give something else for the same sample."""
        ...

    def end_of_text_id(self) -> int:
        """The id that will follow every document."""
        ...

    def build(self, sample: Sequence[str]) -> Tokenizer:
        """The tokenizer itself, given a sample of the training documents."""
        ...


def end_of_text(tokenizer: TokenizerSpec) -> int:
    """The id that parts documents, for parts of a model that ask for it before there is text.

    Raises:
      DataError: the tokenizer is in a file that cannot be read.
    """
    return tokenizer.end_of_text_id()


class StreamDecoder:
    """Text from one token at a time, held back while a character's bytes are incomplete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._values = tokenizer.token_values()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that this token completes, perhaps none."""
        return self._decoder.decode(self._values[token])

    def finish(self) -> str:
        """What was still held back, as U+FFFD; the decoder then starts afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def check_vocab_size(tokenizer: Tokenizer, *, vocab_size: int) -> None:
    """Raise DataError unless a table of `vocab_size` rows has a row for every token."""
    if tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"The tokenizer has {tokenizer.vocab_size} tokens, and the model's table has "
            f"vocab_size={vocab_size} rows.\nSet vocab_size to at least {tokenizer.vocab_size}, "
            "or choose a tokenizer with fewer tokens."
        )

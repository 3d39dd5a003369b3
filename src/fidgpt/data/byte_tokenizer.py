"""The tokenizer that needs no training: one token for each byte."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from fidgpt.data.byte_level import byte_letters
from fidgpt.data.tokenizer import END_OF_TEXT


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8, and 256 is the end of text."""

    sample_bytes = 0
    vocab_size = 257
    end_of_text = 256

    def identity(self) -> str:
        """Always the same."""
        return "bytes"

    def build(self, sample: Sequence[str]) -> "ByteTokenizer":
        """Itself: there is nothing to learn."""
        return self

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of the text."""
        return list(text.encode("utf-8"))

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The UTF-8 bytes of each text."""
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) for text in texts]

    def token_values(self) -> list[bytes]:
        """Each byte, and nothing for the end of text."""
        return [bytes([value]) for value in range(256)] + [b""]

    def token_bytes(self) -> list[int]:
        """1 for each byte, 0 for the end of text."""
        return [1] * 256 + [0]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these bytes; what is no valid UTF-8 becomes U+FFFD."""
        return bytes(value for value in ids if value != self.end_of_text).decode(errors="replace")

    def save(self, path: str | Path) -> None:
        """Write it as a byte-level BPE without merges, which other programs can read too."""
        backend = Tokenizer(models.BPE(vocab=_vocabulary(), merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
        Path(path).write_text(backend.to_str(pretty=True), encoding="utf-8")


def is_byte_tokenizer(text: str) -> bool:
    """Whether the text of a tokenizer.json is one that `ByteTokenizer.save` wrote."""
    model = json.loads(text)["model"]
    return model.get("merges") == [] and model.get("vocab") == _vocabulary()


def _vocabulary() -> dict[str, int]:
    letters = {letter: value for value, letter in enumerate(byte_letters())}
    return {**letters, END_OF_TEXT: 256}

"""The tokenizer that needs no training: one token for each byte."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from fidgpt.data.tokenizers.byte_level import byte_letters
from fidgpt.data.tokenizers.tokenizer import END_OF_TEXT


class ByteTokenizer:
    """Ids 0 to 255 are the bytes of UTF-8, and 256 is the end of text.

    Args:
      special_tokens: names of further tokens that no text holds; they have the ids from 257 on.
    """

    sample_bytes = 0
    end_of_text = 256

    def __init__(self, *, special_tokens: Sequence[str] = ()) -> None:
        self.special_tokens = tuple(special_tokens)
        self.vocab_size = 257 + len(self.special_tokens)

    def identity(self) -> str:
        """Always the same, but for further tokens."""
        return " ".join(["bytes", *self.special_tokens])

    def end_of_text_id(self) -> int:
        """The id after those of the bytes."""
        return self.end_of_text

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
        """Each byte, and nothing for special tokens."""
        return [bytes([value]) for value in range(256)] + [b""] * (self.vocab_size - 256)

    def special_ids(self) -> dict[str, int]:
        """The ids from 256 on, by their names."""
        names = (END_OF_TEXT, *self.special_tokens)
        return {name: number for number, name in enumerate(names, start=256)}

    def token_bytes(self) -> list[int]:
        """1 for each byte, 0 for special tokens."""
        return [1] * 256 + [0] * (self.vocab_size - 256)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these bytes; what is no valid UTF-8 becomes U+FFFD."""
        return bytes(value for value in ids if value < self.end_of_text).decode(errors="replace")

    def save(self, path: str | Path) -> None:
        """Write it as a byte-level BPE without merges, which other programs can read too."""
        backend = Tokenizer(models.BPE(vocab=_vocabulary(), merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        names = [END_OF_TEXT, *self.special_tokens]
        backend.add_special_tokens(
            [AddedToken(name, special=True, normalized=False) for name in names]
        )
        Path(path).write_text(backend.to_str(pretty=True), encoding="utf-8")


def read_byte_tokenizer(content: dict[str, Any]) -> ByteTokenizer | None:
    """What `save` wrote as the tokenizer.json that says this; None where it did not."""
    model = content["model"]
    if model.get("merges") != [] or model.get("vocab") != _vocabulary():
        return None
    added = sorted((token["id"], token["content"]) for token in content.get("added_tokens", ()))
    return ByteTokenizer(special_tokens=[name for number, name in added if number > 256])


def _vocabulary() -> dict[str, int]:
    letters = {letter: value for value, letter in enumerate(byte_letters())}
    return {**letters, END_OF_TEXT: 256}

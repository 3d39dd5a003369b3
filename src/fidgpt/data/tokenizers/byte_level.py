"""A tokenizer of the `tokenizers` library whose tokens are strings of bytes (GPT-2's kind)."""

import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from fidgpt.data.errors import DataError
from fidgpt.data.preparing.encoding import encode_as_text, encode_batch
from fidgpt.data.tokenizers.tokenizer import END_OF_TEXT

# Hugging Face's name for the file beside a tokenizer.json that says which token ends a text.
SETTINGS_FILE = "tokenizer_config.json"


@functools.cache
def byte_letters() -> tuple[str, ...]:
    """The printable character by which a byte-level tokenizer.json writes each byte value.

    Bytes that print in Latin-1 stand for themselves; the others are numbered from U+0100 on.
    Source: the byte-level BPE of Radford et al. 2019.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(value if value in printable else next(spare)) for value in range(256))


class ByteLevelTokenizer:
    """A trained or loaded byte-level tokenizer; `BPETokenizer` and `TokenizerFile` build it."""

    def __init__(self, backend: tokenizers.Tokenizer, *, end_of_text: str) -> None:
        encode_as_text(backend)
        self._backend = backend
        self._values = _token_values(backend)
        number = backend.token_to_id(end_of_text)
        if number is None:
            raise DataError(f"The tokenizer has no token {end_of_text!r} to end a document.")
        self.end_of_text = number
        self._end_of_text_name = end_of_text

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return len(self._values)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end of text."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text; the work leaves Python's lock, so threads run at once."""
        return [np.frombuffer(ids, np.uint32) for ids in encode_batch(self._backend, texts)]

    def token_values(self) -> list[bytes]:
        """The bytes that each id stands for; special tokens stand for none."""
        return list(self._values)

    def special_ids(self) -> dict[str, int]:
        """The ids of the special tokens, by their names."""
        added = self._backend.get_added_tokens_decoder().items()
        return {token.content: number for number, token in added if token.special}

    def token_bytes(self) -> list[int]:
        """The number of UTF-8 bytes that each id stands for; 0 for special tokens."""
        return [len(value) for value in self._values]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; bytes that are no valid UTF-8 become U+FFFD."""
        return b"".join(self._values[token] for token in ids).decode(errors="replace")

    def save(self, path: str | Path) -> None:
        """Write the library's own tokenizer.json, and the end of text beside it if unusual."""
        path = Path(path)
        path.write_text(self._backend.to_str(pretty=True), encoding="utf-8")
        if self._end_of_text_name != END_OF_TEXT:
            settings = json.dumps({"eos_token": self._end_of_text_name}, indent=2)
            path.with_name(SETTINGS_FILE).write_text(settings + "\n", encoding="utf-8")


def check_byte_level(content: dict[str, Any], *, path: Path) -> None:
    """Raise DataError unless this tokenizer.json gives text back exactly, byte by byte."""
    decoder = content.get("decoder") or {}
    parts = [decoder, *(decoder.get("decoders") or [])]
    if not any(part.get("type") == "ByteLevel" for part in parts):
        raise DataError(
            f"{path} has the decoder {decoder.get('type', 'none')!r}, and fidgpt needs a "
            "byte-level tokenizer (as of GPT-2, Llama 3 or Qwen), whose tokens spell every text "
            "exactly.\nChoose another tokenizer.json, or train one with BPETokenizer(vocab_size)."
        )


def _token_values(backend: tokenizers.Tokenizer) -> list[bytes]:
    values_by_letter = {letter: value for value, letter in enumerate(byte_letters())}
    vocabulary = backend.get_vocab(with_added_tokens=True)
    values = [b""] * (max(vocabulary.values()) + 1)
    for token, number in backend.get_vocab(with_added_tokens=False).items():
        if all(letter in values_by_letter for letter in token):
            values[number] = bytes(values_by_letter[letter] for letter in token)
    for number, added in backend.get_added_tokens_decoder().items():
        values[number] = b"" if added.special else added.content.encode()
    return values

"""The ids of texts by the `tokenizers` library, and where long texts can be cut."""

import itertools
import re
from array import array
from collections.abc import Iterator

import tokenizers

# An encoding takes about 120 bytes per character, so that longer texts are encoded in pieces.
PIECE_CHARS = 1 << 18
_AROUND = 256  # characters on each side of a cut that are encoded to test it
_TRIALS = 50  # cuts of a kind to test per stretch of a text
_CUTS = (re.compile(r"(?<=\S\n)(?=[A-Za-z])"), re.compile(r"(?<=[A-Za-z.,;])(?= [A-Za-z])"))


def disable_special_tokens(backend: tokenizers.Tokenizer) -> None:
    """Disable padding, truncation and the parsing of special tokens."""
    # Text that spells a special token is encoded as text: a document cannot end itself.
    backend.encode_special_tokens = True
    backend.no_padding()
    backend.no_truncation()


def encode(
    backend: tokenizers.Tokenizer, text: str, *, piece_chars: int = PIECE_CHARS
) -> "array[int]":
    """Return the ids of a text as 32-bit integers; the calling thread encodes without the GIL.

    Args:
      backend: the tokenizer.
      text: the text, of any length.
      piece_chars: number of characters to encode at once, if the tokenizer splits texts there.
    """
    ids = array("I")
    for piece in pieces(backend, text, piece_chars=piece_chars):
        ids.extend(_encode(backend, piece))
    return ids


def pieces(backend: tokenizers.Tokenizer, text: str, *, piece_chars: int) -> Iterator[str]:
    """Cut a text where its pre-tokenizer does, into pieces whose ids are those of the whole text.

    Cuts are after a line end or before a space, with a word after it, where the characters around
    are split into the same words, and have the same ids, in one part and in two. A text has no cuts
    if its tokenizer has no pre-tokenizer, or if there is no such place: its last piece is the rest.

    Args:
      backend: the tokenizer.
      text: the text, of any length.
      piece_chars: number of characters of a piece; more, if the next cut is further on.
    """
    begin = 0
    while cut := _next_cut(backend, text, begin=begin + piece_chars, piece_chars=piece_chars):
        yield text[begin:cut]
        begin = cut
    yield text[begin:]


def _next_cut(
    backend: tokenizers.Tokenizer, text: str, *, begin: int, piece_chars: int
) -> int | None:
    """Return a place from `begin` on where a text can be cut, the first stretch's first."""
    if backend.pre_tokenizer is None:
        return None
    for start in range(begin, len(text), piece_chars):
        for pattern in _CUTS:
            matches = pattern.finditer(text, start, start + piece_chars)
            for match in itertools.islice(matches, _TRIALS):
                cut = match.start()
                left, right = text[max(0, cut - _AROUND) : cut], text[cut : cut + _AROUND]
                if _is_cut(backend, left, right):
                    return cut
    return None


def _is_cut(backend: tokenizers.Tokenizer, left: str, right: str) -> bool:
    """Return whether two texts have the words and the ids of the text that they are together."""
    words, *parts = (_words(backend, text) for text in (left + right, left, right))
    ids, first, second = (_encode(backend, text) for text in (left + right, left, right))
    return words == [*parts[0], *parts[1]] and ids == first + second


def _words(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """Return what the tokenizer's merges see, one word at a time."""
    normalized = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
    assert backend.pre_tokenizer is not None  # `pieces` cuts no text without one
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalized)]


def _encode(backend: tokenizers.Tokenizer, text: str) -> "array[int]":
    # The calling thread encodes a batch of one; a larger one goes to the library's own threads.
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    return array("I", encoding.ids)  # three times as fast as numpy's conversion of a list

"""A worker process that tokenizes: it reads batches of texts from stdin and writes ids to stdout.

It runs as a script and imports nothing from fidgpt, so that it starts in a tenth of a second.
"""

import itertools
import os
import pickle
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence

import tokenizers

# An encoding takes about 120 bytes per character, so that longer texts are encoded in pieces.
PIECE_CHARS = 1 << 20
_AROUND = 256  # characters on each side of a cut that are encoded to test it
_TRIALS = 50  # cuts of a kind to test per stretch of a text
_CUTS = (re.compile(r"(?<=\S\n)(?=[A-Za-z])"), re.compile(r"(?<=[A-Za-z.,;])(?= [A-Za-z])"))


def disable_special_tokens(backend: tokenizers.Tokenizer) -> None:
    """Disable padding, truncation and the parsing of special tokens."""
    # Text that spells a special token is encoded as text: a document cannot end itself.
    backend.encode_special_tokens = True
    backend.no_padding()
    backend.no_truncation()


def encode_batch(
    backend: tokenizers.Tokenizer, texts: Sequence[str], *, piece_chars: int = PIECE_CHARS
) -> list["array[int]"]:
    """Return the ids of each text as 32-bit integers; releases the GIL while it encodes.

    Args:
      backend: the tokenizer.
      texts: the texts, of any length.
      piece_chars: number of characters to encode at once, if the tokenizer splits texts there.
    """
    if all(len(text) <= piece_chars for text in texts):
        return _encode(backend, texts)
    encoded = []
    for text in texts:
        ids = array("I")
        for piece in pieces(backend, [text], piece_chars=piece_chars):
            ids.extend(_encode(backend, [piece])[0])
        encoded.append(ids)
    return encoded


def pieces(
    backend: tokenizers.Tokenizer, chunks: Iterable[str], *, piece_chars: int = PIECE_CHARS
) -> Iterator[str]:
    """Cut a text where its pre-tokenizer does, into pieces whose ids are those of the whole text.

    Cuts are after a line end or before a space, with a word after it, where the characters around
    are split into the same words, and have the same ids, in one part and in two. A text has no cuts
    if its tokenizer has no pre-tokenizer, or if there is no such place: its last piece is the rest.

    Args:
      backend: the tokenizer.
      chunks: the text, in parts of any length; no more is read than a piece needs.
      piece_chars: number of characters of a piece; more, if the next cut is further on.
    """
    text, tested, is_whole = "", 0, False
    parts = iter(chunks)
    while not is_whole:
        chunk = next(parts, None)
        is_whole = chunk is None
        text += chunk or ""
        while backend.pre_tokenizer is not None:
            begin = max(piece_chars, tested)
            end = len(text) if is_whole else len(text) - _AROUND
            cut = _next_cut(backend, text, begin=begin, end=end, piece_chars=piece_chars)
            if cut is None:
                tested = max(begin, end)
                break
            yield text[:cut]
            text, tested = text[cut:], 0
    yield text


def _next_cut(
    backend: tokenizers.Tokenizer, text: str, *, begin: int, end: int, piece_chars: int
) -> int | None:
    """Return a place from `begin` to `end` where a text can be cut, the first stretch's first."""
    for start in range(begin, end, piece_chars):
        for pattern in _CUTS:
            found = pattern.finditer(text, start, min(start + piece_chars, end))
            for match in itertools.islice(found, _TRIALS):
                cut = match.start()
                left, right = text[max(0, cut - _AROUND) : cut], text[cut : cut + _AROUND]
                if _is_cut(backend, left, right):
                    return cut
    return None


def _is_cut(backend: tokenizers.Tokenizer, left: str, right: str) -> bool:
    """Return whether two texts have the words and the ids of the text that they are together."""
    words, *parts = (_words(backend, text) for text in (left + right, left, right))
    ids, first, second = _encode(backend, [left + right, left, right])
    return words == [*parts[0], *parts[1]] and ids == first + second


def _words(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """Return what the tokenizer's merges see, one word at a time."""
    normalized = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
    assert backend.pre_tokenizer is not None  # `pieces` cuts no text without one
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normalized)]


def _encode(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list["array[int]"]:
    encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
    # array converts a list three times as fast as numpy.
    return [array("I", encoding.ids) for encoding in encodings]


def serve(path: str) -> None:
    """Encode pickled lists of texts from stdin until it ends, with the tokenizer.json at `path`."""
    backend = tokenizers.Tokenizer.from_file(path)
    disable_special_tokens(backend)
    while True:
        try:
            texts: list[str] = pickle.load(sys.stdin.buffer)
        except EOFError:  # the parent is done, or gone
            return
        ids_of_texts = [ids.tobytes() for ids in encode_batch(backend, texts)]
        try:
            pickle.dump(ids_of_texts, sys.stdout.buffer, protocol=5)
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # the parent is gone; a normal exit would print an error
            os._exit(1)


if __name__ == "__main__":
    serve(sys.argv[1])

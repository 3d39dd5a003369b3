"""A worker process that tokenizes: it reads batches of texts from stdin and writes ids to stdout.

It runs as a script and imports nothing from fidgpt, so that it starts in a tenth of a second.
"""

import os
import pickle
import sys
from array import array
from collections.abc import Sequence

import tokenizers


def disable_special_tokens(backend: tokenizers.Tokenizer) -> None:
    """Disable padding, truncation and the parsing of special tokens."""
    # Text that spells a special token is encoded as text: a document cannot end itself.
    backend.encode_special_tokens = True
    backend.no_padding()
    backend.no_truncation()


def encode_batch(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list["array[int]"]:
    """Return the ids of each text as 32-bit integers; releases the GIL while it encodes."""
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
        except (
            BrokenPipeError
        ):  # the parent is gone; a normal exit would print an error about the pipe
            os._exit(1)


if __name__ == "__main__":
    serve(sys.argv[1])

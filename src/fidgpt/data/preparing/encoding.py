"""Text to token ids by the tokenizers library; run as a program, it does so for another process.

As a program it imports neither numpy nor torch, so that it starts in a moment and stays small.
"""

import os
import pickle
import sys
from array import array
from collections.abc import Sequence

import tokenizers


def encode_as_text(backend: tokenizers.Tokenizer) -> None:
    """Set a tokenizer so that it encodes what a text holds, and nothing else."""
    # Text that happens to spell a special token is text: a document cannot end itself.
    backend.encode_special_tokens = True
    backend.no_padding()
    backend.no_truncation()


def encode_batch(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list["array[int]"]:
    """The ids of each text, in 32 bits; threads run at once but for a few nanoseconds a token."""
    encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
    # An array takes a list in a third of the time that numpy does.
    return [array("I", encoding.ids) for encoding in encodings]


def serve(path: str) -> None:
    """Answer each list of texts on the standard input, until it ends, with bytes of their ids."""
    backend = tokenizers.Tokenizer.from_file(path)
    encode_as_text(backend)
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            texts: list[str] = pickle.load(asked)
        except EOFError:  # whoever asks is gone, or has all answers
            return
        ids_of_texts = [ids.tobytes() for ids in encode_batch(backend, texts)]
        try:
            pickle.dump(ids_of_texts, answers, protocol=5)
            answers.flush()
        except BrokenPipeError:  # whoever asked is gone; Python's own end would complain of it
            os._exit(1)


if __name__ == "__main__":
    serve(sys.argv[1])

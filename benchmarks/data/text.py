"""Text of any size to measure with: the standard library over and over, with changes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from fidgpt.data import BPETokenizer, StandardLibrary

_NAMES = re.compile(r"\b(def|class|self|import) ?\.?(\w+)")


def documents(num_bytes: int) -> Iterator[str]:
    """Modules whose names are other ones in every copy, so that no cache knows all words."""
    modules = list(StandardLibrary().documents())
    copy = 0
    while num_bytes > 0:
        for module in modules:
            text = _NAMES.sub(rf"\g<1> \g<2>{copy}", module) if copy else module
            yield text
            num_bytes -= len(text.encode())
            if num_bytes <= 0:
                return
        copy += 1


def write_text(path: Path, *, megabytes: int) -> None:
    """JSON lines of about this much text."""
    with path.open("w", encoding="utf-8") as file:
        for text in documents(megabytes * 10**6):
            file.write(json.dumps({"text": text}) + "\n")


def write_tokenizer(path: Path, *, vocab_size: int) -> None:
    """Byte-pair encoding of GPT-2's kind, learned from the standard library."""
    BPETokenizer(vocab_size=vocab_size).build(list(StandardLibrary().documents())).save(path)

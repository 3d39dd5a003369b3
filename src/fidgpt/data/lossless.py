"""Trials of a tokenizer.json: whether the tokens of a text have the bytes of the text."""

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fidgpt.data.sentence_pieces import SPACE, parts_of

_SENTENCES = (
    "The Zebra saw 12 QUICK foxes; it didn't run.",
    "  two  spaces,\ttabs\r\n\n\n    and ends \n",
    " a line",
    "``quotes'' -- dashes \u2026 \ufb01 \u2460 \u212b \u00bd",
)
_FIRST_OF_THREE_BYTES = (0x800, *range(0x1000, 0xD001, 0x1000), 0xE000, 0xF000)
_FIRST_OF_FOUR_BYTES = (0x10000, 0x40000, 0x80000, 0xC0000, 0x100000)
# Characters that have every byte that occurs in UTF-8.
_ALL_BYTES = "".join(map(chr, [*range(0x800), *_FIRST_OF_THREE_BYTES, *_FIRST_OF_FOUR_BYTES]))


def change_of(
    content: Mapping[str, Any],
    encode: Callable[[str], Sequence[int]],
    values: Sequence[bytes],
    *,
    prefix: str = "",
) -> str | None:
    """Return what a tokenizer changes in some text, and by which part; None if nothing.

    The composition of characters (NFC) is allowed: it changes how a text is written and not how
    it is read. So is a prefix in front of a text, or that only where the text has none. Parts that
    change each text with some pattern are found by what they are, as no trial has all patterns.

    Args:
      content: the parsed tokenizer.json.
      encode: returns the tokens of a text.
      values: the bytes of each token.
      prefix: what the tokenizer puts in front of a text.
    """
    added = [
        token["content"]
        for token in content.get("added_tokens") or ()
        if not token.get("special") and SPACE not in token["content"]
    ]
    for text in (*_SENTENCES, *(f"a {token} b" for token in added), _ALL_BYTES):
        decoded = b"".join(values[token] for token in encode(text))
        begun = text if text.startswith(prefix) else prefix + text
        allowed = {prefix + text, begun, unicodedata.normalize("NFC", prefix + text)}
        if decoded not in {text.encode() for text in allowed}:
            part = next(_suspects(content, text, values), "it")
            if text == _ALL_BYTES:
                return f"{part} changes some characters"
            return f"{part} changes {text!r} to {decoded.decode(errors='replace')!r}"
    normalizers = parts_of(content.get("normalizer"), "normalizers")
    replaces = any(p["type"] == "Replace" and p.get("content") != SPACE for p in normalizers)
    part = "its normalizer Replace" if replaces else next(_removing(content), None)
    return None if part is None else f"{part} changes texts that hold its pattern"


def _removing(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pre-tokenizers that remove what they split at.

    An inverted pattern matches words, which may be all of a text.
    """
    for part in parts_of(content.get("pre_tokenizer"), "pretokenizers"):
        removes = part.get("behavior") == "Removed" and not part.get("invert")
        if removes or part["type"].startswith(("Whitespace", "CharDelimiter")):
            yield f"its pre-tokenizer {part['type']}, which removes what is between words,"


def _suspects(content: Mapping[str, Any], text: str, values: Sequence[bytes]) -> Iterator[str]:
    """Yield the parts that change texts, in the order in which they are applied."""
    for token in content.get("added_tokens") or ():
        if (token.get("lstrip") or token.get("rstrip")) and token["content"] in text:
            yield f"its added token {token['content']!r}, which strips the spaces beside it,"
    for part in parts_of(content.get("normalizer"), "normalizers"):
        if part["type"] not in ("NFC", "Prepend") and part.get("content") != SPACE:
            yield f"its normalizer {part['type']}"
    for part in parts_of(content.get("pre_tokenizer"), "pretokenizers"):
        if part.get("add_prefix_space"):
            yield f"its pre-tokenizer {part['type']} with add_prefix_space"
        if part.get("behavior") == "Removed" and part.get("invert"):
            yield f"its pre-tokenizer {part['type']}, which removes what is between words,"
    yield from _removing(content)
    letters = {value for value in values if len(value) == 1}
    if missing := sorted({byte for byte in text.encode() if bytes([byte]) not in letters}):
        listed = ", ".join(f"{byte:#04x}" for byte in missing[:4])
        yield f"its vocabulary, which has no token for {len(missing)} bytes such as {listed},"

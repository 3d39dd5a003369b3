"""Which piece of a directive is wrong, shown under it."""

import re

_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")
_PUNCTUATION = ".,:;"
_WIDEST = 100


def blamed(number: int, directive: str, message: str) -> str:
    """A mistake in a directive: which one it is, with carets under the wrong piece, and why.

    The wrong piece is the first one that the message quotes and the directive holds, or the
    longest word that both have; without any, all that follows the directive's kind.
    """
    line, *more = directive.splitlines() or [""]
    shown = line if len(line) <= _WIDEST else line[: _WIDEST - 3] + "..."
    flag = f"--config={shown}" + (" ..." if more and shown == line else "")
    begin, end = _piece(shown, message)
    carets = " " * (len("--config=") + begin) + "^" * (end - begin)
    why = message.replace("\n", "\n  ")
    return f"directive {number} is wrong:\n  {flag}\n  {carets}\n  {why}"


def _find(directive: str, word: str, start: int) -> int:
    """Where a word stands, rather by itself than within another one; -1 where it does not."""
    alone = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)").search(directive, start)
    return alone.start() if alone else directive.find(word, start)


def _piece(directive: str, message: str) -> tuple[int, int]:
    """Where the wrong piece begins and ends."""
    start = directive.find(":") + 1
    quoted = [found[1] or found[2] for found in _QUOTED.finditer(message)]
    words = [word.strip(_PUNCTUATION) for word in message.split()]
    longest = sorted((word for word in words if len(word) > 2), key=len, reverse=True)
    for word in (*quoted, *longest):
        at = _find(directive, word, start if word in directive[start:] else 0)
        if at >= (0 if word in quoted else start):
            return at, at + len(word)
    start = start if start < len(directive) else 0
    return start, max(len(directive), start + 1)

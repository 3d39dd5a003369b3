"""Which piece of a directive is wrong, shown under it."""

import re

_QUOTED = re.compile(r"\['[^']*'\]|'([^']+)'|\"([^\"]+)\"")  # the keys of a path are no quotes
_PUNCTUATION = ".,:;"
_WIDEST = 100


def blamed(number: int, directive: str, message: str) -> str:
    """A mistake in a directive: which one it is, with carets under the wrong piece, and why."""
    return f"directive {number} is wrong:\n{pointed(directive, message)}\n{indented(message)}"


def pointed(directive: str, message: str) -> str:
    """A directive as it was typed, and carets under the piece of it that a message is about.

    That is the first piece that the message quotes and the directive holds, or the longest word
    that both have; without any, all that follows the directive's kind.
    """
    line, *more = directive.splitlines() or [""]
    shown = line if len(line) <= _WIDEST else line[: _WIDEST - 3] + "..."
    flag = f"--config={shown}" + (" ..." if more and shown == line else "")
    begin, end = _piece(shown, message)
    carets = " " * (len("--config=") + begin) + "^" * (end - begin)
    return f"{indented(flag)}\n{indented(carets)}"


def indented(text: str) -> str:
    """Lines that belong to the one above them."""
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _alone(word: str, text: str, start: int = 0) -> re.Match[str] | None:
    """Where a word stands by itself, and not within a longer word or number."""
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)").search(text, start)


def _span(directive: str, word: str, start: int) -> tuple[int, int]:
    """Where a word that is there stands, rather by itself than within another one."""
    alone = _alone(word, directive, start)
    at = alone.start() if alone else directive.find(word, start)
    return at, at + len(word)


def _piece(directive: str, message: str) -> tuple[int, int]:
    """Where the wrong piece begins and ends."""
    start = directive.find(":") + 1
    value = directive.find("=") + 1 or len(directive)
    phrase = _phrase(message, directive[value:])
    unsaid = message.replace(phrase, "") if phrase else message  # a value may have quotes in it
    if at := _at_quoted(directive, unsaid, start):
        return at
    if phrase:
        return _span(directive, phrase, value)
    for word in _words(message):
        if word in directive[start:]:
            return _span(directive, word, start)
    start = start if start < len(directive) else 0
    return start, max(len(directive), start + 1)


def _words(message: str) -> list[str]:
    """The words of a message, the longest first; short ones are in many directives."""
    words = [word.strip(_PUNCTUATION) for word in message.split()]
    return sorted((word for word in words if len(word) > 2), key=len, reverse=True)


def _at_quoted(directive: str, message: str, start: int) -> tuple[int, int] | None:
    """The first piece of a directive that a message quotes."""
    quoted = [found[1] or found[2] for found in _QUOTED.finditer(message)]
    found = next((word for word in quoted if word and word in directive), "")
    return _span(directive, found, start if found in directive[start:] else 0) if found else None


def _phrase(message: str, value: str) -> str:
    """The longest words in a row that a message has of the value that a directive says."""
    words, longest = message.split(), ""
    for i in range(len(words)):
        for end in range(i + 1, len(words) + 1):
            phrase = " ".join(words[i:end]).strip(_PUNCTUATION)
            if not _alone(phrase, value):
                break
            longest = max(longest, phrase, key=len)
    return longest if len(longest) > 2 else ""

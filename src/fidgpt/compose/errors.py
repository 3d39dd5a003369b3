"""Errors attributed to directives: which ones set the wrong values, and the wrong piece of each."""

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import fiddle as fdl

from fidgpt.compose.directives import is_base
from fidgpt.graph import ConfigError, Resolved
from fidgpt.graph.errors import listed
from fidgpt.graph.paths import ParameterRef, follow, parse_path
from fidgpt.graph.provenance import Assignment, Source, assignments_at, assignments_of

_QUOTED = re.compile(r"\['[^']*'\]|'([^']+)'|\"([^\"]+)\"")  # the keys of a path are no quotes
_ITEM = re.compile(r"\[\d+\]")
_PUNCTUATION = ".,:;"
_WIDEST = 100


def directive_error(number: int, directive: str, message: str) -> str:
    """Return the message of a wrong directive, with carets under the piece that it is about."""
    return f"directive {number} is wrong:\n{_underlined(directive, message)}\n{_indented(message)}"


def _underlined(directive: str, message: str) -> str:
    line, *more = directive.splitlines() or [""]
    shown = line if len(line) <= _WIDEST else line[: _WIDEST - 3] + "..."
    flag = f"--config={shown}" + (" ..." if more and shown == line else "")
    begin, end = _wrong_piece(shown, message)
    carets = " " * (len("--config=") + begin) + "^" * (end - begin)
    return f"{_indented(flag)}\n{_indented(carets)}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _wrong_piece(directive: str, message: str) -> tuple[int, int]:
    """Return where the piece begins and ends that a message is about.

    That is the first piece that the message quotes and the directive contains, or the longest
    phrase of its value or word that both contain; otherwise everything after the kind.
    """
    start = directive.find(":") + 1
    value = directive.find("=") + 1 or len(directive)
    phrase = _common_phrase(message, directive[value:])
    rest = message.replace(phrase, "") if phrase else message  # a value may contain quotes
    quoted = [found[1] or found[2] for found in _QUOTED.finditer(rest)]
    if word := next((one for one in quoted if one and one in directive), ""):
        return _span(directive, word, start if word in directive[start:] else 0)
    if phrase:
        return _span(directive, phrase, value)
    words = [one.strip(_PUNCTUATION) for one in message.split()]
    for word in sorted((one for one in words if len(one) > 2), key=len, reverse=True):
        if word in directive[start:]:
            return _span(directive, word, start)
    start = start if start < len(directive) else 0
    return start, max(len(directive), start + 1)


def _whole_word(word: str, text: str, start: int = 0) -> re.Match[str] | None:
    return re.compile(rf"(?<!\w){re.escape(word)}(?!\w)").search(text, start)


def _span(directive: str, word: str, start: int) -> tuple[int, int]:
    """Return where a word stands, preferably as a whole word."""
    whole = _whole_word(word, directive, start)
    begin = whole.start() if whole else directive.find(word, start)
    return begin, begin + len(word)


def _common_phrase(message: str, value: str) -> str:
    """Return the longest consecutive words that a message shares with a directive's value."""
    words, longest = message.split(), ""
    for i in range(len(words)):
        for end in range(i + 1, len(words) + 1):
            phrase = " ".join(words[i:end]).strip(_PUNCTUATION)
            if not _whole_word(phrase, value):
                break
            longest = max(longest, phrase, key=len)
    return longest if len(longest) > 2 else ""


class Attribution:
    """Finds the directives that set the values from which the errors of a graph come."""

    def __init__(self, root: Any, resolve: Callable[[], Resolved]) -> None:
        """Read the assignments of a graph.

        Args:
          root: the graph as the directives made it.
          resolve: returns the graph resolved.
        """
        self._root = root
        self._inherited: dict[tuple[int, Any], list[Assignment]] = {}
        with contextlib.suppress(ConfigError):  # a graph that cannot be bound is among the errors
            for one in resolve().inherited:
                found = assignments_of(one.binding.node.value, one.binding.key)
                self._inherited[id(one.part), one.key] = found

    def messages(self, error: ConfigError, *, attributed_only: bool = False) -> list[str]:
        """Return one message for all errors of the same directives, which it shows.

        Args:
          error: the errors.
          attributed_only: whether to leave out errors that no directive caused.
        """
        groups: dict[Any, tuple[dict[int, str], list[ConfigError]]] = {}
        for one in error.mistakes:
            directives = self.directives_behind(one)
            key = tuple(directives) or _ITEM.sub("[]", str(one))
            if directives or not attributed_only:
                groups.setdefault(key, (directives, []))[1].append(one)
        return [_message("\n".join(grouped(errors)), by) for by, errors in groups.values()]

    def directives_behind(self, error: ConfigError) -> dict[int, str]:
        """Return the directives, by number, that set the values from which an error comes.

        Everything else was set by the config that the graph began with, which is none of them.
        """
        sources = [self._source(ref) for path in error.sources if (ref := self._nearest(path))]
        found = [one for one in sources if one and one.kind == "directive" and one.run is None]
        found = [one for one in found if not is_base(one.text)]
        return {one.number: one.text for one in sorted(found, key=lambda one: one.number)}

    def _nearest(self, path: str) -> ParameterRef | None:
        """Return the parameter at a path, or the nearest one above that exists before binding."""
        with contextlib.suppress(ConfigError):
            keys = parse_path(path)
            for end in range(len(keys), 0, -1):
                with contextlib.suppress(ConfigError):
                    return follow(self._root, keys[:end], path)
        return None

    def _source(self, ref: ParameterRef) -> Source | None:
        """Return what last assigned a parameter, or what contains it."""
        nearest: ParameterRef | None = ref
        while nearest is not None:
            inherited = self._inherited.get((id(nearest.container), nearest.key), [])
            if own := assignments_at(nearest) or inherited:
                return (inherited if inherited and own[0].value is fdl.NO_VALUE else own)[0].by
            nearest = nearest.above
        return None


def grouped(errors: Iterable[ConfigError]) -> list[str]:
    """Return one message for all errors that differ only in the index of an item of a list."""
    groups: dict[str, list[ConfigError]] = {}
    for error in errors:
        groups.setdefault(_ITEM.sub("[]", str(error)), []).append(error)
    messages: list[str] = []
    for first, *others in groups.values():
        places = [one.place for one in others if one.place]
        more = f"\nThe same at {listed(places, most=2)}." if places else ""
        messages.append(f"{first}{more}")
    return messages


def _message(message: str, directives: dict[int, str]) -> str:
    if len(directives) < 2:
        return next((directive_error(n, text, message) for n, text in directives.items()), message)
    *others, last = map(str, directives)
    shown = [_underlined(directive, message) for directive in directives.values()]
    first = f"directives {', '.join(others)} and {last} do not go together:"
    return "\n".join([first, *shown, _indented(message)])

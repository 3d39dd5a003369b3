"""How errors show the directive that they are about."""

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fidgpt.graph import Source

_QUOTED = re.compile(r"(?<![\w(\[])(?:'([^']+)'|\"([^\"]+)\")")  # not the keys of a path

_PUNCTUATION = ".,:;"
_WIDEST = 100


class Written(str):
    """A directive that was written as part of a file or a flag, which errors show in its place.

    Attributes:
      where: the file and the line, or the flag.
      shown: the line itself, or the flag with all its text.
      column: where in it the directive begins, counted from 0.
    """

    where: str
    shown: str
    column: int

    @classmethod
    def in_file(
        cls, text: str, file: str, lines: Sequence[str], line: int, column: int
    ) -> "Written":
        """Return a directive that begins at a line and column, both counted from 0."""
        new = cls(text)
        new.where, new.column = f"{file}:{line + 1}", column
        new.shown = lines[line] if line < len(lines) else ""
        return new

    @classmethod
    def in_flag(cls, flag: str) -> "Written":
        """Return the text of a flag, such as `--sweep=set:seed=1,2`; `alike` makes its values."""
        name, _, text = flag.partition("=")
        new = cls(text)
        new.where, new.shown, new.column = name, flag, len(name) + 1
        return new

    def alike(self, text: str) -> "Written":
        """Return another directive that the same line or flag stands for."""
        new = Written(text)
        vars(new).update(vars(self))
        return new


def label(number: int, directive: str) -> str:
    """Return the name of a directive: its number, or where it was written."""
    return directive.where if isinstance(directive, Written) else f"directive {number}"


def directive_error(number: int, directive: str, message: str) -> str:
    """Return the message of a wrong directive, with carets under the piece that it is about."""
    below = textwrap.indent(message, "  ", lambda _: True)
    return f"{label(number, directive)} is wrong:\n{underlined(directive, message)}\n{below}"


def directives_error(directives: "Sequence[Source]", message: str) -> str:
    """Return a message with the directives that it is about, if there are any."""
    if len(directives) < 2:
        errors = (directive_error(d.number, d.text, message) for d in directives)
        return next(errors, message)
    shown = "\n".join(underlined(directive.text, message) for directive in directives)
    below = textwrap.indent(message, "  ", lambda _: True)
    names = " and ".join(label(directive.number, directive.text) for directive in directives)
    if not any(directive.where for directive in directives):
        names = f"directives {' and '.join(str(directive.number) for directive in directives)}"
    return f"{names} conflict:\n{shown}\n{below}"


def underlined(directive: str, message: str) -> str:
    """Return a directive, or its line, with carets under the piece that a message is about."""
    if isinstance(directive, Written):
        start = directive.column
        cut = max(0, start - _WIDEST // 2) if len(directive.shown) > _WIDEST else 0
        shown = directive.shown[cut : cut + _WIDEST].rstrip()
        begin, end = _wrong_piece(shown, message, start - cut, start - cut + 1)
    else:
        line, *more = directive.splitlines() or [""]
        shown = line if len(line) <= _WIDEST else line[: _WIDEST - 3] + "..."
        value = shown.find("=") + 1 or len(shown)
        flag = len("--config=")
        begin, end = _wrong_piece(shown, message, shown.find(":") + 1, value)
        begin, end = begin + flag, end + flag
        shown = f"--config={shown}" + (" ..." if more and shown == line else "")
    return textwrap.indent(f"{shown}\n{' ' * begin}{'^' * (end - begin)}", "  ")


def _wrong_piece(text: str, message: str, start: int, value: int) -> tuple[int, int]:
    """Return where the piece begins and ends that a message is about.

    That is the first piece that the message quotes and the text contains, or the longest phrase
    that both contain, preferably of its value; otherwise everything from the start.

    Args:
      text: a directive or a line.
      message: the message.
      start: where what may be wrong begins.
      value: where the value begins.
    """
    words = message.split()
    spans = (words[i:end] for i in range(len(words)) for end in range(i + 1, i + 10))
    phrases = {" ".join(span).strip(_PUNCTUATION): None for span in spans}
    phrases = sorted((phrase for phrase in phrases if len(phrase) > 2), key=len, reverse=True)
    quoted = [match[1] or match[2] for match in _QUOTED.finditer(message)]
    for pieces, first in ((quoted, start), (quoted, 0), (phrases, value), (phrases, start)):
        for piece in pieces:
            if piece not in text:
                continue  # to compile a pattern of a long piece takes far longer than to look
            if match := re.compile(rf"(?<!\w){re.escape(piece)}(?!\w)").search(text, first):
                return match.span()
    return (start, len(text)) if start < len(text) else (0, max(len(text), 1))

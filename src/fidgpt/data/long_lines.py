"""The text of a JSON line that is too long for memory, in pieces."""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

# Characters of a string in JSON, up to its end or to the first escape that is not complete. The two
# escapes of a character beyond U+FFFF stay together.
_CHARACTERS = re.compile(
    r'(?:[^"\\]++'
    r"|\\[^u]"
    r"|\\u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7c-fC-F][0-9a-fA-F]{2})"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[0-9a-fA-F]{4}|(?=[^\\]|\\[^u]))"
    r")*+"
)
_STRUCTURE = re.compile(r'["{}\[\]:,]')
_LONGEST_ESCAPE = len(r"\ud83d\ude00")


class LongLine:
    """A JSON object in UTF-8, whose field of text is read in pieces.

    Args:
      chunks: the bytes of the line, in parts of any length.
      text_field: name of the field.
      max_rest: maximum number of characters of everything but the text.

    Attributes:
      row: the object, with an empty text, after `pieces` has ended.
    """

    def __init__(self, chunks: Iterable[bytes], *, text_field: str, max_rest: int) -> None:
        self.row: Any = None
        self._chunks = iter(chunks)
        self._text_field = text_field
        self._max_rest = max_rest
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._buffer = ""
        self._at = 0  # what is before it in the buffer was read
        self._rest: list[str] = []
        self._rest_chars = 0

    def pieces(self) -> Iterator[str]:
        """Yield the text; nothing if the field is missing or not a string.

        Raises:
          ValueError: the line is not JSON in UTF-8, holds the field twice, or has too much besides.
        """
        depth, is_object, is_value, key, found = 0, False, False, "", False
        while mark := self._find_mark():
            if mark == '"':
                if depth == 1 and is_object and is_value and key == self._text_field:
                    if found:
                        raise ValueError(f"it holds the field {key!r} twice")
                    found = True
                    yield from self._string()
                else:
                    parts = []
                    for part in self._string():
                        self._count(part)
                        parts.append(part)
                    string = "".join(parts)
                    self._rest.append(json.dumps(string)[1:-1])
                    key = key if is_value else string
                self._rest.append('"')
            elif mark in "{[":
                depth += 1
                is_object = mark == "{" if depth == 1 else is_object
                is_value = is_value and depth > 1
            elif mark in "}]":
                depth -= 1
            elif depth == 1:
                is_value = mark == ":"
        self.row = json.loads("".join(self._rest))

    def _string(self) -> Iterator[str]:
        """Yield the decoded string that begins here, and skip the quotation mark that ends it."""
        while True:
            match = _CHARACTERS.match(self._buffer, self._at)
            assert match is not None  # it may be empty
            if part := match.group():
                self._at = match.end()
                yield json.loads(f'"{part}"')
            if self._buffer.startswith('"', self._at):
                self._at += 1
                return
            if len(self._buffer) - self._at >= _LONGEST_ESCAPE or not self._read():
                raise ValueError("a string does not end, or has an escape that is not valid")

    def _find_mark(self) -> str:
        """Move behind the next mark and return it, reading on; empty at the end of the line."""
        while (match := _STRUCTURE.search(self._buffer, self._at)) is None:
            self._keep(len(self._buffer))
            if not self._read():
                return ""
        self._keep(match.end())
        return match.group()

    def _keep(self, end: int) -> None:
        """Move to a place in the buffer, and keep what is before it, to be parsed at the end."""
        part = self._buffer[self._at : end]
        self._at = end
        self._count(part)
        self._rest.append(part)

    def _count(self, part: str) -> None:
        self._rest_chars += len(part)
        if self._rest_chars > self._max_rest:
            raise ValueError(
                f"it holds more than {self._max_rest} characters besides {self._text_field!r}"
            )

    def _read(self) -> bool:
        """Read another chunk; return whether there is one."""
        chunk = next(self._chunks, None)
        left = self._buffer[self._at :]
        self._buffer, self._at = left + self._decoder.decode(chunk or b"", chunk is None), 0
        return chunk is not None

"""Ending a text at a string, wherever the tokens part it."""

from collections.abc import Sequence


class UntilString:
    """Passes text on up to the first of some strings, which is not passed on.

    What may be the beginning of such a string is held back until it is clear.

    Args:
      strings: end the text; none of them is empty.

    Raises:
      ValueError: one is empty.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        if not all(strings):
            raise ValueError("an empty string ends every text: give one character at least.")
        self._strings = strings
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """What is certain of the text after this piece; nothing once a string was found."""
        if self.found:
            return ""
        text = self._held + piece
        places = [place for string in self._strings if (place := text.find(string)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        certain = len(text) - max((_begun(text, string) for string in self._strings), default=0)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """What was still held back: no string came."""
        rest, self._held = self._held, ""
        return rest


def _begun(text: str, string: str) -> int:
    """How many characters of the string, not all, the text ends with."""
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)

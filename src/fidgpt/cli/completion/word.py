"""One word that may follow."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Candidate:
    """A word, or the beginning of one.

    Attributes:
      text: all of it, from where completion began.
      is_whole: whether a space may follow; otherwise there is more to type.
      doc: what is said beside it.
    """

    text: str
    is_whole: bool = True
    doc: str = ""

    def after(self, prefix: str) -> "Candidate":
        """The same behind a prefix."""
        return replace(self, text=prefix + self.text)

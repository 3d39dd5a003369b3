"""A command line as a shell reads it, up to the place where somebody is typing."""

from dataclasses import dataclass, field


@dataclass
class Word:
    """One word of a line.

    Attributes:
      raw: as it is typed, with quotes and backslashes.
      text: what it means.
      quote: the quote that is still open at its end, or "".
      before_quote: what it means up to that quote.
    """

    raw: str = ""
    text: str = ""
    quote: str = ""
    before_quote: str = ""

    @property
    def is_typed(self) -> bool:
        return bool(self.raw)


@dataclass
class Line:
    """The words before the one that is being typed, which may be empty, and that one."""

    words: list[str] = field(default_factory=list)
    current: Word = field(default_factory=Word)


def read_line(text: str) -> Line:
    """Reads quotes and backslashes; only the last of several commands on a line counts."""
    line = Line()
    letters = iter(text)
    for letter in letters:
        word = line.current
        if word.quote:
            if letter == word.quote:
                word.quote = ""
            elif letter == "\\" and word.quote == '"':
                following = next(letters, "")
                word.text += following if following in '"\\$`' else letter + following
                letter += following
            else:
                word.text += letter
        elif letter in "'\"":
            word.quote, word.before_quote = letter, word.text
        elif letter == "\\":
            following = next(letters, "")
            word.text += following
            letter += following
        elif letter in ";|&\n":
            line = Line()
            continue
        elif letter.isspace():
            if word.is_typed:
                line.words.append(word.text)
                line.current = Word()
            continue
        else:
            word.text += letter
        word.raw += letter
    return line

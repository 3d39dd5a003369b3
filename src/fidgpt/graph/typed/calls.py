"""Reading `NAME` and `NAME(argument, name=argument)` as somebody types them."""

from dataclasses import dataclass

from fidgpt.graph.errors import ConfigError


@dataclass(frozen=True)
class Call:
    """A name and the texts of its arguments."""

    name: str
    positional: list[str]
    named: dict[str, str]


def parse_call(text: str) -> Call:
    """Splits a call into its texts; values are read later, by the function's annotations.

    Raises:
      ConfigError: the parentheses or the commas are wrong.
    """
    name, parenthesis, rest = text.partition("(")
    if not parenthesis:
        return Call(text.strip(), [], {})
    if not rest.rstrip().endswith(")"):
        raise ConfigError(f"{text!r:.80} opens a parenthesis and does not end with its other half.")
    positional: list[str] = []
    named: dict[str, str] = {}
    for argument in split_at_commas(rest.rstrip()[:-1]):
        key, equals, value = argument.partition("=")
        if equals and key.strip().isidentifier():
            if key.strip() in named:
                raise ConfigError(f"{name.strip()} is given {key.strip()} twice.")
            named[key.strip()] = value.strip()
        elif named:
            raise ConfigError(f"{argument.strip()!r} has no name and follows one that has.")
        else:
            positional.append(argument.strip())
    return Call(name.strip(), positional, named)


def split_at_commas(text: str, *, quotes: str = "'\"") -> list[str]:
    """Pieces between commas that stand outside of brackets and quotes.

    A quote that is not closed is an apostrophe. A comma may stand at the end.

    Raises:
      ConfigError: there is nothing between two commas.
    """
    pieces, depth, quote, start = [], 0, "", 0
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in quotes:
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            pieces.append(text[start:i])
            start = i + 1
    if quote:
        return split_at_commas(text, quotes=quotes.replace(quote, ""))
    pieces.append(text[start:])
    if not pieces[-1].strip():
        pieces.pop()
    if not all(piece.strip() for piece in pieces):
        raise ConfigError(f"{text!r:.80} has a comma with nothing before it.")
    return pieces

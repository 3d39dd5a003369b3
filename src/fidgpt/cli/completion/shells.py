"""Writing candidates so that each shell puts them where they belong."""

from collections.abc import Sequence

from fidgpt.cli.completion.line import Word, read_line
from fidgpt.cli.completion.word import Candidate

_BASH_BREAKS = " \t\n\"'><=;|&(:"
_BASH_SPECIAL = " \t\n\"'\\><;|&()$`!{}#~"  # brackets and stars are literal where no file matches


def written(shell: str, current: Word, found: Sequence[Candidate], breaks: str = "") -> list[str]:
    """The lines that the script of a shell reads."""
    if shell == "bash":
        words = [_for_bash(current, one, breaks or _BASH_BREAKS) for one in found]
        is_open_end = len(found) == 1 and current.quote and not found[0].is_whole
        return [words[0], f"{words[0]}..."] if is_open_end else words
    if shell == "zsh":
        return [f"{'whole' if one.is_whole else 'open'}\t{one.text}\t{one.doc}" for one in found]
    return [f"{one.text}\t{one.doc}" for one in found]


def _for_bash(current: Word, one: Candidate, breaks: str) -> str:
    """What replaces the piece that readline takes for the word, which begins at a break or quote.

    Bash closes a quote after the only word that there is, and puts no space where the script asks
    for none: where there is more to type in a quote, it is shown two words.
    """
    if current.quote:
        text = one.text[len(current.before_quote) :]
        return text.replace("'", '"') if current.quote == "'" else text
    kept = len(read_line(_before_break(current.raw, breaks)).current.text)
    quoted = "".join(f"\\{c}" if c in _BASH_SPECIAL else c for c in one.text[kept:])
    return f"{quoted} " if one.is_whole else quoted


def _before_break(raw: str, breaks: str) -> str:
    end = 0
    is_escaped = False
    for i, letter in enumerate(raw):
        if is_escaped:
            is_escaped = False
        elif letter == "\\":
            is_escaped = True
        elif letter in breaks:
            end = i + 1
    return raw[:end]

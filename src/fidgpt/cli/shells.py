"""Completion scripts for shells."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


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


_ASK = "{python} -P -m fidgpt.cli.completion"

_BASH = """\
# Source this, for example: eval "$(python train.py --completion=bash)"
_fidgpt() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
        {ask} bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
}
_fidgpt_python() {
    case "${COMP_LINE:0:COMP_POINT}" in
        *train.py\\ * | *sweep.py\\ * | *-m\\ fidgpt.*\\ *) _fidgpt ;;
        *) [ -z "$_fidgpt_before" ] || "$_fidgpt_before" "$@" ;;
    esac
}
if [ -z "${_fidgpt_before+known}" ]; then
    _fidgpt_before=$(complete -p python 2>/dev/null | sed -n 's/.* -F \\([^ ]*\\) .*/\\1/p')
fi
complete -o nospace -F _fidgpt fidgpt-train fidgpt-sweep fidgpt-sample fidgpt-evaluate fidgpt-export
complete -o nospace -o bashdefault -o default -F _fidgpt_python python python3
"""

_ZSH = """\
# Source this, for example: eval "$(python train.py --completion=zsh)"
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
_fidgpt() {
    local kind text doc
    local -a whole open whole_docs open_docs
    while IFS=$'\\t' read -r kind text doc; do
        if [[ $kind == whole ]]; then
            whole+=("$text") whole_docs+=("$text${doc:+  -- $doc}")
        else
            open+=("$text") open_docs+=("$text${doc:+  -- $doc}")
        fi
    done < <({ask} zsh "$LBUFFER" 2>/dev/null)
    (( $#whole )) && compadd -l -d whole_docs -a whole
    (( $#open )) && compadd -l -S '' -d open_docs -a open
    (( $#whole + $#open )) || _files
}
_fidgpt_python() {
    if [[ $LBUFFER == *(train|sweep).py\\ * || $LBUFFER == *-m\\ fidgpt.*\\ * ]]; then
        _fidgpt
    elif (( $+functions[_python] )) || autoload -Uz +X _python 2>/dev/null; then
        _python "$@"
    else
        _default
    fi
}
compdef _fidgpt fidgpt-train fidgpt-sweep fidgpt-sample fidgpt-evaluate fidgpt-export
compdef _fidgpt_python python python3
"""

_FISH = """\
# Source this, for example: python train.py --completion=fish | source
function __fidgpt
    {ask} fish (commandline -cp | string collect) 2>/dev/null
end
function __fidgpt_is_python_of
    string match -qr '(train|sweep)\\.py |-m fidgpt\\.\\S* ' -- (commandline -cp | string collect)
end
complete -c fidgpt-train -c fidgpt-sweep -c fidgpt-sample -f -a '(__fidgpt)'
complete -c fidgpt-evaluate -c fidgpt-export -f -a '(__fidgpt)'
complete -c python -c python3 -n __fidgpt_is_python_of -f -a '(__fidgpt)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str:
    """The script of a shell, which asks the Python that runs now."""
    ask = _ASK.replace("{python}", shlex.quote(sys.executable))
    return _SCRIPTS[shell].replace("{ask}", ask)


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

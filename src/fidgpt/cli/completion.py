"""Tab completion: the scripts of shells, and `python -m fidgpt.cli.completion` that they call."""

import ast
import importlib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import flags

from fidgpt.cli.listing import LISTS
from fidgpt.compose.directives import DIRECTIVES, split_directive
from fidgpt.compose.index import Index, index_for

Words = dict[str, str]  # what may follow, with what is shown beside it

COMMANDS = ("train", "sweep", "sample", "evaluate", "export")
_OPEN = tuple("=:./[")  # how words end that there is more to type of
_STEP = re.compile(r"\.?\w+|\[[^\]]*\]")
_ENTRY = re.compile(r"\['([A-Za-z_]\w*)'\]")

_PROGRAMS = " ".join(f"fidgpt-{name}" for name in COMMANDS)
_ASK = f"{shlex.quote(sys.executable)} -P -m fidgpt.cli.completion"
SCRIPTS = {
    "bash": f"""\
# Source this, for example: eval "$(python train.py --completion=bash)"
_fidgpt() {{
    local line
    COMPREPLY=()
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(
        {_ASK} bash "${{COMP_LINE:0:COMP_POINT}}" "$COMP_WORDBREAKS" 2>/dev/null)
}}
_fidgpt_python() {{
    case "${{COMP_LINE:0:COMP_POINT}}" in
        *train.py\\ * | *sweep.py\\ * | *-m\\ fidgpt.*\\ *) _fidgpt ;;
        *) [ -z "$_fidgpt_before" ] || "$_fidgpt_before" "$@" ;;
    esac
}}
if [ -z "${{_fidgpt_before+known}}" ]; then
    _fidgpt_before=$(complete -p python 2>/dev/null | sed -n 's/.* -F \\([^ ]*\\) .*/\\1/p')
fi
complete -o nospace -F _fidgpt {_PROGRAMS}
complete -o nospace -o bashdefault -o default -F _fidgpt_python python python3
""",
    "zsh": f"""\
# Source this, for example: eval "$(python train.py --completion=zsh)"
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}
_fidgpt() {{
    local text doc
    local -a whole open whole_docs open_docs
    while IFS=$'\\t' read -r text doc; do
        if [[ $text == *[=:./[] ]]; then
            open+=("$text") open_docs+=("$text${{doc:+  -- $doc}}")
        else
            whole+=("$text") whole_docs+=("$text${{doc:+  -- $doc}}")
        fi
    done < <({_ASK} zsh "$LBUFFER" 2>/dev/null)
    (( $#whole )) && compadd -l -d whole_docs -a whole
    (( $#open )) && compadd -l -S '' -d open_docs -a open
    (( $#whole + $#open )) || _files
}}
_fidgpt_python() {{
    if [[ $LBUFFER == *(train|sweep).py\\ * || $LBUFFER == *-m\\ fidgpt.*\\ * ]]; then
        _fidgpt
    elif (( $+functions[_python] )) || autoload -Uz +X _python 2>/dev/null; then
        _python "$@"
    else
        _default
    fi
}}
compdef _fidgpt {_PROGRAMS}
compdef _fidgpt_python python python3
""",
    "fish": f"""\
# Source this, for example: python train.py --completion=fish | source
function __fidgpt
    {_ASK} fish (commandline -cp | string collect) 2>/dev/null
end
function __fidgpt_is_python_of
    string match -qr '(train|sweep)\\.py |-m fidgpt\\.\\S* ' -- (commandline -cp | string collect)
end
complete{"".join(f" -c fidgpt-{name}" for name in COMMANDS)} -f -a '(__fidgpt)'
complete -c python -c python3 -n __fidgpt_is_python_of -f -a '(__fidgpt)'
""",
}


def main(shell: str, line: str, breaks: str = " ") -> None:
    """Print the words that the last one on a line may become, as the script of a shell reads them.

    Args:
      shell: bash, zsh or fish.
      line: what is typed so far.
      breaks: the characters at which bash begins a new word.
    """
    words, typed, quote = split_line(line)
    found = candidates(words, typed)
    lines = [f"{text}\t{doc}" for text, doc in found.items()]
    if shell == "bash":  # readline replaces what follows the open quote or the last break
        tail = (
            line[line.rfind(quote) + 1 :] if quote else re.split(f"[{re.escape(breaks)}]", line)[-1]
        )
        kept = len(typed) - len(tail)
        lines = [text[kept:] + " " * (not quote and not text.endswith(_OPEN)) for text in found]
        if quote and len(lines) == 1 and lines[0].endswith(_OPEN):
            lines.append(f"{lines[0]}...")  # or bash would close the quote
    for one in lines:
        print(one)


def split_line(line: str) -> tuple[list[str], str, str]:
    """Split a line as a shell does: its whole words, the one being typed, and its open quote."""
    for quote in ("", "'", '"'):
        try:
            words = shlex.split(line + quote)
        except ValueError:
            continue
        is_begun = bool(quote) or not line[-1:].isspace()
        return (words[:-1], words[-1], quote) if is_begun and words else (words, "", "")
    return line.split(), "", ""


def candidates(words: Sequence[str], typed: str) -> Words:
    """Return the words that `typed` may become after others on a line; none of another program."""
    command, arguments, folder = _command(words)
    if command is None:
        return {}
    sys.path[:0] = folder
    known = _flags_of(command)
    flag, equals, value = typed.partition("=")
    before = known.get(arguments[-1].removeprefix("--")) if arguments else None
    if typed.startswith("-") and not equals:
        found = {text: flag.help for flag in known.values() for text in _spellings(flag)}
    elif typed.startswith("-"):
        found = _after(f"{flag}=", _values(known, flag[2:], value, arguments))
    elif before is not None and not before.boolean:
        found = _values(known, before.name, typed, arguments[:-1])
    else:
        found = _files(typed)
    return {text: " ".join(doc.split()) for text, doc in found.items() if text.startswith(typed)}


def _command(words: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
    """The command that a line runs, the words after it, and the folder of its script."""
    for i, word in reversed([*enumerate(words)]):
        name, rest = os.path.basename(word).removesuffix(".py"), list(words[i + 1 :])
        if name.removeprefix("fidgpt-") in COMMANDS and name.startswith("fidgpt-"):
            return name.removeprefix("fidgpt-"), rest, []
        *package, last = word.split(".")
        if words[i - 1] == "-m" and package in (["fidgpt"], ["fidgpt", "cli"]) and last in COMMANDS:
            return last, rest, []
        script = Path(word).expanduser()
        is_script = script.name in ("train.py", "sweep.py") and script.is_file()
        if is_script and "fidgpt" in script.read_text(encoding="utf-8", errors="replace"):
            return name, rest, [str(script.absolute().parent)]
    return None, [], []


def _flags_of(command: str) -> dict[str, flags.Flag]:
    importlib.import_module(f"fidgpt.cli.{command}")
    modules = flags.FLAGS.flags_by_module_dict().items()
    return {flag.name: flag for name, own in modules if name.startswith("fidgpt.") for flag in own}


def _spellings(flag: flags.Flag) -> list[str]:
    takes_value = not flag.boolean or flag.flag_type() != "bool"
    return [f"--{flag.name}"] * flag.boolean + [f"--{flag.name}="] * takes_value


def _values(known: Mapping[str, flags.Flag], name: str, typed: str, words: Sequence[str]) -> Words:
    """What the value of a flag may become."""
    if name in ("resume", "run_dir"):
        return {text: "" for text in _files(typed) if text.endswith("/")}
    kind, colon, path = typed.partition(":")
    if name in ("config", "sweep", "space") and not colon:
        return {f"{one.kind}:": one.help for one in DIRECTIVES.values()}
    index = _index(words) if name in ("config", "sweep", "space", "list", "why", "diff") else {}
    match name:
        case "config" | "sweep" | "space":
            return _directives(typed, index)
        case "list" if colon:
            return _after(f"{kind}:", paths(path, index))
        case "list":
            return dict.fromkeys([*LISTS, "parts:", "knobs:"], "")
        case "why":
            return paths(typed, index)
        case "diff":
            return _names(typed, "config", index) | _files(typed)
    if name not in known or type(known[name].parser) is flags.ArgumentParser:
        return _files(typed)
    choices = getattr(known[name].parser, "enum_values", None) or []
    return {word: "" for word in choices if word not in ("true", "false")}


def _index(words: Sequence[str]) -> Index:
    """The index of the config that a line begins with, or else of the default one."""
    try:
        return index_for(_given("config", words), _given("allow", words), wait=False)
    except ValueError:  # a ConfigError: its parameters are not known
        return index_for([], wait=False) | {"parameters": []}


def _given(flag: str, words: Sequence[str]) -> list[str]:
    """The values that a line gives a flag, joined to it by `=` or as the next word."""
    return [
        word.partition("=")[2] if "=" in word else following
        for word, following in zip(words, [*words[1:], ""], strict=False)
        if word.partition("=")[0] == f"--{flag}"
    ]


def _directives(typed: str, index: Index) -> Words:
    kind, rest = split_directive(typed)
    completes = DIRECTIVES[kind].completes if kind in DIRECTIVES else ""
    before, equals, value = rest.partition("=")
    done = rest.rpartition(",")[0] + "," * ("," in rest)  # of an axis of a sweep
    if equals and completes != "path=path":
        return {}
    if equals:
        found = _after(f"{before}=", paths(value, index))
    elif completes == "file":
        found = _files(rest)
    elif completes.startswith(("path", "value")):
        end = "=" if "=" in completes else ""
        found = paths(rest, index, end, values_only=completes.startswith("value"))
    elif completes == "tag=":
        names = _names(rest, "tag", index)
        found = {name if name[-1] == "." else f"{name}=": doc for name, doc in names.items()}
    elif completes in ("config", "fiddler") and "(" not in rest:
        found = _after(done, _names(rest.removeprefix(done), completes, index))
    else:
        found = {}
    return _after(f"{kind}:", found)


def paths(typed: str, index: Index, end: str = "", *, values_only: bool = False) -> Words:
    """What a path may become: to its next step, or with `end` after it where it is whole."""
    known = {
        one["path"]: f"{one['type']} {one['value']} {one.get('doc', '')}"
        for one in index["parameters"]
        if not (values_only and "node" in one)
    }
    if typed.startswith("@"):
        return {f"@{name}{end}": entry["doc"] for name, entry in index["tags"].items()}
    if typed.startswith("**"):
        names = {path.rpartition(".")[2]: doc for path, doc in known.items()}
        return {f"**.{name}{end}": doc for name, doc in names.items() if "[" not in name}
    if typed.startswith(":"):
        titles = {one["path"]: one["node"] for one in index["parameters"] if "node" in one}
        split = {path: path.rpartition(".") for path in known}
        return {
            f":{titles[above]}.{name}{end}": known[path]
            for path, (above, _, name) in split.items()
            if above in titles and "[" not in name
        }
    return _next_steps(typed, {_ENTRY.sub(r".\1", path): doc for path, doc in known.items()}, end)


def _next_steps(typed: str, known: Words, end: str) -> Words:
    found: Words = {}
    for path, doc in known.items():
        if path.startswith(typed):
            stops = (step.end() for step in _STEP.finditer(path))
            stop = next(one for one in stops if one >= len(typed))
            if stop == len(path):
                found[path + end] = doc
            else:
                found.setdefault(path[: stop + 1], "")  # with the dot or bracket that follows
    only = next(iter(found), "")
    goes_on = len(found) == 1 and only.endswith((".", "["))
    return _next_steps(only, known, end) if goes_on else found


def _names(typed: str, kind: str, index: Index) -> Words:
    """The names of a kind, and those in a module that is named."""
    known = {name: entry["doc"] for name, entry in index[f"{kind}s"].items()}
    return known | (_in_module(typed, kind) if "." in typed else {})


def _in_module(typed: str, kind: str) -> Words:
    """What the module or package before the last dot defines, which is not imported for it."""
    module = typed.rpartition(".")[0]
    for folder in map(Path, sys.path):
        place = folder.joinpath(*module.split("."))
        if place.is_dir() and module.strip("."):
            inside = [one for one in place.iterdir() if one.is_dir() or one.suffix == ".py"]
            return {f"{module}.{one.stem}.": "" for one in inside if one.stem[0] not in "_."}
        if place.with_suffix(".py").is_file():
            wanted = ast.ClassDef if kind == "tag" else ast.FunctionDef
            body = ast.parse(place.with_suffix(".py").read_text(encoding="utf-8")).body
            defined = [one for one in body if isinstance(one, wanted) and one.name[0] != "_"]
            return {f"{module}.{one.name}": ast.get_docstring(one) or "" for one in defined}
    return {}


def _files(typed: str) -> Words:
    """The files in the folder that is typed so far; hidden ones where a dot is typed."""
    folder, slash, name = typed.rpartition("/")
    try:
        entries = sorted(os.scandir(os.path.expanduser(folder + slash) or "."), key=os.fspath)
    except OSError:
        return {}
    shown = [one for one in entries if name.startswith(".") or not one.name.startswith(".")]
    return {f"{folder}{slash}{one.name}{'/' * one.is_dir()}": "" for one in shown}


def _after(prefix: str, words: Words) -> Words:
    return {prefix + text: doc for text, doc in words.items()}


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception:  # while someone types, silence is better than a traceback
        sys.exit(1)

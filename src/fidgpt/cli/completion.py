"""Tab completion: the scripts of shells, and `python -m fidgpt.cli.completion` that they call."""

import ast
import glob
import importlib
import os
import pkgutil
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from absl import flags

from fidgpt.cli.commands import COMMANDS as PROGRAMS
from fidgpt.cli.words import with_flags
from fidgpt.compose.directives import DIRECTIVES
from fidgpt.compose.index import Index, index_for

Words = dict[str, str]  # words that may follow, with the help shown beside them

COMMANDS = ("train", "sweep", "sample", "chat", "evaluate", "export")
_PROGRAM = re.compile(rf"(?:.*/)?fidgpt[-. ](?:cli\.)?({'|'.join(COMMANDS)})")
_UNFINISHED = tuple("=:./[")  # how words end that are typed on
_STEP = re.compile(r"[=.\[]")
_ENTRY = re.compile(r"\['([A-Za-z_]\w*)'\]")

_PROGRAMS = " ".join(["fidgpt", *(f"fidgpt-{name}" for name in COMMANDS)])
_ASK = f"{shlex.quote(sys.executable)} -P -m fidgpt.cli.completion"


def script(shell: str) -> str:
    """Return the script that bash, zsh or fish is to read, in which Tab asks this program."""
    text = Path(__file__).with_suffix(f".{shell}").read_text(encoding="utf-8")
    return text.replace("@ASK@", _ASK).replace("@PROGRAMS@", _PROGRAMS)


def main(shell: str, line: str, breaks: str = " ") -> None:
    """Print the words that the last one on a line may become, as the script of a shell reads them.

    Args:
      shell: bash, zsh or fish.
      line: the line typed so far.
      breaks: the characters at which bash begins a new word.
    """
    words, typed, quote = split_line(line)
    texts = candidates(words, typed)
    lines = [f"{text}\t{doc}" if shell == "fish" else text for text, doc in texts.items()]
    if shell == "bash":  # readline replaces what follows the open quote or the last break
        tail = line.rpartition(quote)[2] if quote else re.split(f"[{re.escape(breaks)}]", line)[-1]
        kept = len(typed) - len(tail)
        lines = [
            text[kept:] + " " * (not quote and not text.endswith(_UNFINISHED)) for text in texts
        ]
        if quote and len(lines) == 1 and lines[0].endswith(_UNFINISHED):
            lines.append(f"{lines[0]}...")  # or bash would close the quote
    for candidate in lines:
        print(candidate)


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
    if not command:
        is_first = bool(words) and Path(words[-1]).name == "fidgpt"
        return {name: "" for name in PROGRAMS if is_first and name.startswith(typed)}
    sys.path[:0] = folder
    known = _flags_of(command)
    name, equals, value = typed.removeprefix("--").partition("=")
    before = known.get(arguments[-1].removeprefix("--")) if arguments else None
    if name in known and equals:
        proposed = _after(f"--{name}=", _values(known[name], value, arguments))
    elif typed.startswith("-"):
        proposed = {f"--{flag.name}": flag.help for flag in known.values() if flag.boolean}
        with_value = (flag for flag in known.values() if flag.flag_type() != "bool")
        proposed |= {f"--{flag.name}=": flag.help for flag in with_value}
    elif before is not None and not before.boolean:
        proposed = _values(before, typed, arguments[:-1])
    elif "config" in known:
        proposed = _words(typed, arguments) | _files(typed)
    else:
        proposed = _files(typed)
    return {text: " ".join(doc.split()) for text, doc in proposed.items() if text.startswith(typed)}


def _command(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """The command that a line runs, the words after it, and the folder of its script."""
    for i, word in reversed([*enumerate(words)]):
        script = Path(word).expanduser()
        both = f"{words[i - 1]} {word}" if i else ""
        if program := _PROGRAM.fullmatch(word) or _PROGRAM.fullmatch(both):
            return program[1], list(words[i + 1 :]), []
        is_script = script.name in ("train.py", "sweep.py") and script.is_file()
        if is_script and "fidgpt" in script.read_text(encoding="utf-8", errors="replace"):
            return script.stem, list(words[i + 1 :]), [str(script.absolute().parent)]
    return "", [], []


def _flags_of(command: str) -> dict[str, flags.Flag]:
    importlib.import_module(f"fidgpt.cli.{command}")
    modules = flags.FLAGS.flags_by_module_dict().items()
    return {flag.name: flag for name, own in modules if name.startswith("fidgpt.") for flag in own}


def _values(flag: flags.Flag, typed: str, words: Sequence[str]) -> Words:
    """What the value of a flag may become: a directive, or what holds names, paths or files."""
    kind, colon, path = typed.partition(":")
    match flag.name:
        case "config" | "sweep" | "space" if not colon:
            return _kinds()
        case "config" | "sweep" | "space":
            return _after(f"{kind}:", _directives(kind, path, _index(words)))
        case "list" if colon:
            return _after(f"{kind}:", _paths(path, _index(words)))
        case "why":
            return _paths(typed, _index(words))
        case "diff":
            return _names(typed, "config", _index(words)) | _files(typed)
    return _files(typed)


def _words(typed: str, words: Sequence[str]) -> Words:
    """What a word without a flag may become: a name, a directive, or the path of a value.

    Paths and kinds are many: they are offered once a letter is typed.
    """
    index, (kind, colon, rest) = _index(words), typed.partition(":")
    if kind in DIRECTIVES and colon:
        return _after(f"{kind}:", _directives(kind, rest, index))
    names = _names(typed, "config", index) | _names(typed, "fiddler", index)
    if not typed:
        return names
    return names | _kinds() | _directives("set", typed, index) | _names(typed, "tag", index, "=")


def _kinds() -> Words:
    """The kinds of directives, including the kinds of projects."""
    return {f"{kind.kind}:": kind.help for kind in DIRECTIVES.values()}


def _index(words: Sequence[str]) -> Index:
    """The index of the config that a line begins with, or else of the default one."""
    with suppress(ValueError):  # a ConfigError: a word is wrong
        words = with_flags(words, flags.FLAGS)

    def given(flag: str) -> list[str]:
        lines = "\n".join(words).replace(f"--{flag}\n", f"--{flag}=")
        return re.findall(rf"^--{flag}=(.*)$", lines, re.MULTILINE)

    try:
        return index_for(given("config"), given("allow"), wait=False)
    except ValueError:  # a ConfigError: its parameters are not known
        return index_for([], wait=False) | {"parameters": []}


def _directives(kind: str, rest: str, index: Index) -> Words:
    """What may follow the colon of a directive."""
    completes = DIRECTIVES[kind].completes if kind in DIRECTIVES else ""
    end = "=" * ("=" in completes)
    match completes:
        case "file":
            return _files(rest)
        case "tag=":
            return _names(rest, "tag", index, end)
        case "path" | "path=" | "value=":
            return _paths(rest, index, end, values_only=completes == "value=")
        case "config" | "fiddler" if "(" not in rest:
            done = rest[: rest.rfind(",") + 1]  # of an axis of a sweep
            return _after(done, _names(rest.removeprefix(done), completes, index))
    return {}


def _paths(typed: str, index: Index, end: str = "", *, values_only: bool = False) -> Words:
    """What a path may become: to its next step, or with `end` after it where it is whole."""
    known = {
        _ENTRY.sub(r".\1", row["path"]) + end: f"{row['type']} {row['value']} {row.get('doc', '')}"
        for row in index["parameters"]
        if not (values_only and "node" in row)
    }
    words: Words = {}
    for path, doc in known.items():
        if path.startswith(typed):
            step = _STEP.search(path, len(typed))
            text = path[: step.end()] if step else path
            words.setdefault(text, doc if text == path else "")
    return words


def _names(typed: str, kind: str, index: Index, end: str = "") -> Words:
    """The names of a kind, and those in a module that is named, which is not imported for it."""
    words = {f"{name}{end}": entry["doc"] for name, entry in index[f"{kind}s"].items()}
    module = typed.rpartition(".")[0]
    for place in (Path(folder, *module.split(".")) for folder in sys.path if module.strip(".")):
        if place.is_dir():
            return words | {f"{module}.{sub.name}.": "" for sub in pkgutil.iter_modules([place])}
        if (file := place.with_suffix(".py")).is_file():
            wanted = ast.ClassDef if kind == "tag" else ast.FunctionDef
            body = ast.parse(file.read_text(encoding="utf-8")).body
            defined = [node for node in body if isinstance(node, wanted) and node.name[0] != "_"]
            docs = {f"{module}.{node.name}{end}": ast.get_docstring(node) or "" for node in defined}
            return words | docs
    return words


def _files(typed: str) -> Words:
    """The files whose paths begin with the typed text; hidden ones where a dot is typed."""
    start = os.path.expanduser(typed)
    paths = sorted(glob.glob(f"{glob.escape(start)}*"))
    return {f"{typed}{path[len(start) :]}{'/' * os.path.isdir(path)}": "" for path in paths}


def _after(prefix: str, words: Words) -> Words:
    return {prefix + text: doc for text, doc in words.items()}


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception:  # while someone types, silence is better than a traceback
        sys.exit(1)

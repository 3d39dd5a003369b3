"""What may follow on the line of one of fidgpt's commands."""

import os
import re
from collections.abc import Iterator, Sequence

from fidgpt.cli.commands import COMMANDS
from fidgpt.cli.completion.directives import complete_directive, complete_name, knobs_for
from fidgpt.cli.completion.files import complete_file
from fidgpt.cli.completion.line import Line
from fidgpt.cli.completion.paths import complete_path
from fidgpt.cli.completion.word import Candidate
from fidgpt.cli.index.store import Index
from fidgpt.cli.showing.lists import LISTS, OF_A_PLACE

_SCRIPTS = {"train.py": "train", "sweep.py": "sweep"}
_NAMES = {f"fidgpt-{name}": name for name in COMMANDS}
_MODULES = {module: name for name, module in COMMANDS.items()}
_NEEDS_KNOBS = re.compile(r"\b(set|tag|del|use|tie|untie|parts|knobs):")
_ASSIGN = ("set", "tag", "use", "tie")


def command_of(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Which of fidgpt's commands a line runs, and the words after it; None where none."""
    for i, word in enumerate(words):
        rest, name = list(words[i + 1 :]), os.path.basename(word)
        if name in _NAMES:
            return _NAMES[name], rest
        if word in _MODULES and words[i - 1] == "-m":
            return _MODULES[word], rest
        if name in _SCRIPTS and _is_ours(word):
            return _SCRIPTS[name], rest
    return None


def folder_of_script(words: Sequence[str]) -> list[str]:
    """Where Python would look for modules first, if a line runs a script."""
    scripts = [word for word in words if os.path.basename(word) in _SCRIPTS]
    return [os.path.dirname(os.path.abspath(os.path.expanduser(one))) for one in scripts[:1]]


def needs_knobs(line: Line) -> bool:
    """Whether what is being typed is a path or a quantity of a config."""
    return bool(_NEEDS_KNOBS.search(line.current.text))


def candidates(line: Line, index: Index) -> list[Candidate]:
    """The words that the one being typed may become, all of each."""
    found = command_of(line.words)
    if found is None:
        return []
    command, words = found
    typed = line.current.text
    flags = {flag["name"]: flag for flag in index.get("flags", {}).get(command, [])}
    named, equals, value = typed.partition("=")
    if typed.startswith("--") and equals:
        some = [one.after(f"{named}=") for one in _values(named[2:], value, words, flags, index)]
    elif typed.startswith("-"):
        some = list(_flags(flags))
    elif words and words[-1].startswith("--") and _takes_a_word(words[-1][2:], flags):
        some = list(_values(words[-1][2:], typed, words[:-1], flags, index))
    else:
        some = complete_file(typed, folders_only=True) if command in ("sample", "export") else []
    return [one for one in some if _continues(one.text, typed)]


def _values(
    flag: str, typed: str, words: Sequence[str], flags: dict[str, dict], index: Index
) -> list[Candidate]:
    earlier = list(said("config", words))
    if flag == "config":
        return complete_directive(typed, earlier, index)
    if flag in ("sweep", "space"):
        return _axis(typed, earlier, index)
    if flag == "list":
        return _lists(typed, earlier, index)
    if flag == "why":
        return complete_path(typed, knobs_for(earlier, index), end="", parts_end=True)
    if flag == "diff":
        return [*complete_name(typed, "config", index), *complete_file(typed)]
    if flag in ("resume", "run_dir"):
        return complete_file(typed, folders_only=True)
    return [Candidate(word) for word in flags.get(flag, {}).get("choices", [])]


def _axis(typed: str, earlier: list[str], index: Index) -> list[Candidate]:
    """An axis is a directive with several values: what follows a comma is one more of them."""
    before, comma, last = typed.rpartition(",")
    if not comma or typed.count("(") > typed.count(")"):
        return complete_directive(typed, earlier, index)
    kind, _, rest = typed.partition(":")
    head = f"{kind}:{rest.partition('=')[0]}=" if kind in _ASSIGN else f"{kind}:"
    found = complete_directive(head + last, earlier, index)
    return [Candidate(f"{before},{one.text[len(head) :]}", one.is_whole, one.doc) for one in found]


def _lists(typed: str, earlier: list[str], index: Index) -> list[Candidate]:
    kind, colon, path = typed.partition(":")
    if not colon:
        whole = [Candidate(one) for one in LISTS]
        return whole + [Candidate(f"{one}:", False) for one in OF_A_PLACE]
    found = complete_path(path, knobs_for(earlier, index), end="", parts_end=True)
    return [one.after(f"{kind}:") for one in found]


def _flags(flags: dict[str, dict]) -> Iterator[Candidate]:
    for name, flag in flags.items():
        if flag.get("alone"):
            yield Candidate(f"--{name}", True, flag["help"])
        if not flag.get("alone") or flag.get("choices") or name == "list":
            yield Candidate(f"--{name}=", False, flag["help"])
    yield Candidate("--help", True, "Show the flags, and what the chosen config can be told.")


def _takes_a_word(flag: str, flags: dict[str, dict]) -> bool:
    return flag in flags and not flags[flag].get("alone")


def said(flag: str, words: Sequence[str]) -> Iterator[str]:
    """What a line gives a flag that may be repeated."""
    for i, word in enumerate(words):
        if word.startswith(f"--{flag}="):
            yield word.partition("=")[2]
        elif word == f"--{flag}" and i + 1 < len(words):
            yield words[i + 1]


def _continues(text: str, typed: str) -> bool:
    return text.replace('"', "'").startswith(typed.replace('"', "'"))


def _is_ours(script: str) -> bool:
    """Whether a train.py is fidgpt's, and not that of somebody else's project."""
    try:
        with open(os.path.expanduser(script), encoding="utf-8", errors="replace") as file:
            return "fidgpt" in file.read(2000)
    except OSError:
        return False

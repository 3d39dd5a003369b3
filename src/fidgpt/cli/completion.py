"""Completion of words on the command line."""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fidgpt.cli.shells import Candidate, Line, read_line, written
from fidgpt.compose.index import COMMANDS, Index, chosen_config, for_completion
from fidgpt.compose.spelling import KINDS, LISTS, OF_A_PLACE


def complete_file(typed: str, *, folders_only: bool = False) -> list[Candidate]:
    """The files in the folder that is typed so far; hidden ones where a dot is typed."""
    folder, _, name = typed.rpartition("/")
    prefix = f"{folder}/" if "/" in typed else ""
    try:
        with os.scandir(os.path.expanduser(prefix) or ".") as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        return []
    return [
        Candidate(f"{prefix}{one}/" if is_folder else f"{prefix}{one}", not is_folder)
        for one, is_folder in sorted(found)
        if one.startswith(name)
        and (is_folder or not folders_only)
        and (name.startswith(".") or not one.startswith("."))
    ]


Knob = dict
_PLAIN = {"bool", "int", "float", "str"}
_SEGMENT = re.compile(r"\.?[A-Za-z_]\w*|\[[^\]]*\]")


def complete_path(
    typed: str, knobs: Sequence[Knob], *, end: str, parts_end: bool = False
) -> list[Candidate]:
    """What a path may become: to its next segment, or with `end` after it where it is whole.

    A part is on the way to its parameters; with `parts_end` the path may end at it, too.
    """
    if typed.startswith(":"):
        return list(_by_class(knobs, end, parts_end))
    if typed.startswith("**."):
        names = {knob["path"].rpartition(".")[2]: knob for knob in reversed(knobs)}
        found = [Candidate(f"**.{name}{end}", not end, told(one)) for name, one in names.items()]
        return [one for one in found if one.text.startswith(typed) and "[" not in one.text]
    known = _with_shared(typed.replace('"', "'"), knobs)
    found = _next_segments(typed.replace('"', "'"), known, end, parts_end)
    while len(found) == 1 and not found[0].is_whole and found[0].text[-1] in ".[":
        known = _with_shared(found[0].text, knobs)
        deeper = _next_segments(found[0].text, known, end, parts_end)
        if not deeper or deeper == found:
            break
        found = deeper
    return found


def knob_at(path: str, knobs: Sequence[Knob]) -> Knob | None:
    """The knob that a path names; of several the first."""
    path = path.replace('"', "'")
    if path.startswith(":"):
        called, dot, name = path[1:].partition(".")
        places = [one["path"] for one in knobs if one.get("part") == called]
        path = next((f"{place}{dot}{name}" for place in places), path)
    elif path.startswith("**."):
        ends = [one["path"] for one in knobs if f".{one['path']}".endswith(path[2:])]
        path = next(iter(ends), path)
    return next((knob for knob in _with_shared(path, knobs) if knob["path"] == path), None)


def told(knob: Knob) -> str:
    """What is said beside a path: its value and its doc."""
    return " ".join(f"{knob['type']} {knob['value']} {knob.get('doc', '')}".split())


def _by_class(knobs: Sequence[Knob], end: str, parts_end: bool) -> Iterator[Candidate]:
    """What parts of a class are, wherever they stand, and their parameters, each once."""
    called = {one["path"]: one["part"] for one in knobs if "part" in one and "same" not in one}
    found: dict[str, Candidate] = {}
    for knob in knobs:
        holder, _, name = knob["path"].rpartition(".")
        if parts_end and knob["path"] in called:
            text = f":{called[knob['path']]}{end}"
            found.setdefault(text, Candidate(text, not end))
        if holder in called and "[" not in name and (parts_end or _can_be_typed(knob)):
            text = f":{called[holder]}.{name}{end}"
            found.setdefault(text, Candidate(text, not end, told(knob)))
    yield from found.values()


def _next_segments(typed: str, knobs: Sequence[Knob], end: str, parts_end: bool) -> list[Candidate]:
    found: dict[str, Candidate] = {}
    for knob in knobs:
        path = knob["path"]
        if not path.startswith(typed):
            continue
        stop = _end_of_segment(path, len(typed))
        if stop < len(path):
            text = path[: stop + 1]  # with the dot or bracket that begins the next one
            found.setdefault(text, Candidate(text, False, ""))
            continue
        if "same" in knob:
            found.setdefault(f"{path}.", Candidate(f"{path}.", False, told(knob)))
        if parts_end or _can_be_typed(knob):
            found[path + end] = Candidate(path + end, not end, told(knob))
    return list(found.values())


def _end_of_segment(path: str, at_least: int) -> int:
    for match in _SEGMENT.finditer(path):
        if match.end() >= at_least and match.end() > 0:
            return match.end()
    return len(path)


def _can_be_typed(knob: Knob) -> bool:
    """Whether a text can say it: no part, and no list of parts; a number that one computes may."""
    is_plain = not _PLAIN.isdisjoint(knob["type"].split(" or "))
    return is_plain or "choices" in knob or not ("part" in knob or "holds" in knob)


def _with_shared(typed: str, knobs: Sequence[Knob]) -> list[Knob]:
    """The knobs, and those of a shared part under the path that is being typed."""
    known = list(knobs)
    for shared in knobs:
        if "same" in shared and typed.startswith((f"{shared['path']}.", f"{shared['path']}[")):
            below = [one for one in knobs if one["path"].startswith(f"{shared['same']}.")]
            for one in below:
                path = shared["path"] + one["path"][len(shared["same"]) :]
                known.append(one | {"path": path})
    return known


_TYPES = {"bool": ["True", "False"], "None": ["None"]}


def complete_directive(text: str, earlier: Sequence[str], index: Index) -> list[Candidate]:
    """What a directive may become, behind the directives `earlier` on the line."""
    kind, colon, rest = text.partition(":")
    if not colon:
        return [Candidate(f"{one}:", False, doc) for one, doc in KINDS.items()]
    return [one.after(f"{kind}:") for one in _complete(kind, rest, earlier, index)]


def _complete(kind: str, rest: str, earlier: Sequence[str], index: Index) -> list[Candidate]:
    if kind in ("config", "fiddler"):
        return complete_name(rest, kind, index)
    if kind in ("config_file", "patch"):
        return complete_file(rest)
    knobs = knobs_for(earlier, index)
    if kind == "tag":
        return _tag(rest, knobs, index)
    if kind == "set":
        return _set(rest, knobs, index)
    if kind == "use":
        return _use(rest, knobs, index)
    if kind == "tie":
        left, equals, right = rest.partition("=")
        if not equals:
            return complete_path(left, knobs, end="=", parts_end=True)
        return _behind(f"{left}=", complete_path(right, knobs, end="", parts_end=True))
    return complete_path(rest, knobs, end="", parts_end=True) if kind in ("del", "untie") else []


def complete_name(text: str, kind: str, index: Index) -> list[Candidate]:
    """What the name of a `config` or `fiddler` may become, with its arguments."""
    known = _with_bare(text, index.get(f"{kind}s", {})) | _offered(text, kind)
    return [*complete_call(text, known), *_modules(text)]


def knobs_for(directives: Sequence[str], index: Index) -> list[dict]:
    """The knobs of the config that the directives begin with; empty where it is not known."""
    knobs, name = index.get("knobs", {}), chosen_config(directives)
    return knobs.get(name) or knobs.get(name.partition("(")[0].strip(), [])


def complete_call(text: str, entries: Mapping[str, dict]) -> list[Candidate]:
    """What `NAME(argument=value, ...)` may become, for names with their entries of the index."""
    name, parenthesis, inside = text.partition("(")
    if not parenthesis:
        return list(_calls(entries))
    before, _, typed = inside.rpartition(",")
    head = f"{name}({before}," if before else f"{name}("
    space = typed[: len(typed) - len(typed.lstrip())]
    arguments = {one["name"]: one for one in entries.get(name, {}).get("arguments", [])}
    argument, equals, _ = typed.strip().partition("=")
    if equals:
        words = _words_of(arguments.get(argument, {}))
        return _behind(f"{head}{space}{argument}=", [Candidate(word, False) for word in words])
    given = {one.partition("=")[0].strip() for one in before.split(",")}
    free = [one for one in arguments.values() if one["name"] not in given]
    return _behind(head + space, [Candidate(f"{one['name']}=", False, _told(one)) for one in free])


def _calls(entries: Mapping[str, dict]) -> Iterable[Candidate]:
    for name, entry in entries.items():
        arguments = entry.get("arguments", [])
        if not arguments or all("default" in one for one in arguments):
            yield Candidate(name, True, entry.get("doc", ""))
        if arguments:
            yield Candidate(f"{name}(", False, entry.get("doc", ""))


def _set(rest: str, knobs: list[dict], index: Index) -> list[Candidate]:
    path, equals, value = rest.partition("=")
    if not equals:
        if rest.startswith("@"):
            return _behind("@", _tag_names(index["tags"]))
        return complete_path(rest, knobs, end="=")
    knob = knob_at(path, knobs) or {}
    if "part" in knob:
        return _put(path, value, knobs, index)
    words = knob.get("choices") or [knob.get("value", "")]
    return _behind(f"{path}=", [Candidate(word) for word in words if word])


def _use(rest: str, knobs: list[dict], index: Index) -> list[Candidate]:
    path, equals, call = rest.partition("=")
    if not equals:
        return [
            one
            for one in complete_path(path, knobs, end="=", parts_end=True)
            if not one.text.endswith("=") or _fitting(one.text[:-1], knobs, index)
        ]
    return _put(path, call, knobs, index)


def _put(path: str, call: str, knobs: list[dict], index: Index) -> list[Candidate]:
    """The parts that fit a place, and those of a module that is named."""
    fitting = {name: index["parts"][name] for name in _fitting(path, knobs, index)}
    parts = fitting | _offered(call, "part")
    found = [*complete_call(call, parts), *_modules(call)]
    if "(" not in call:  # what it hears and what is kept may be all that it needs
        found += [Candidate(name, True, part["doc"]) for name, part in parts.items()]
    return _behind(f"{path}=", dict.fromkeys(found))


def _fitting(path: str, knobs: list[dict], index: Index) -> list[str]:
    knob = knob_at(path, knobs)
    return index.get("fits", {}).get(knob["type"], []) if knob else []


def _tag(rest: str, knobs: list[dict], index: Index) -> list[Candidate]:
    name, equals, _ = rest.partition("=")
    if not equals:
        known = _with_bare(rest, index["tags"]) | _offered(rest, "tag")
        return [*_tag_names(known), *_modules(rest)]
    said = [one for one in knobs if name in one.get("tags", []) and "heard" not in one]
    words = {word: None for one in said for word in one.get("choices") or [one["value"]] if word}
    return _behind(f"{name}=", [Candidate(word) for word in words])


def _tag_names(tags: Mapping[str, dict]) -> list[Candidate]:
    return [Candidate(f"{name}=", False, tag["doc"]) for name, tag in tags.items()]


def _with_bare(typed: str, known: Mapping[str, dict]) -> dict[str, dict]:
    """The names, and behind a begun bare one those of projects without modules, if unmistakable."""
    begun = typed.partition("(")[0].strip()
    if not begun or "." in begun:
        return dict(known)
    bare = {name: name.rpartition(".")[2] for name in known if "." in name}
    count = Counter(bare.values())
    return {last: known[name] for name, last in bare.items() if count[last] == 1} | dict(known)


def _offered(typed: str, kind: str) -> dict[str, dict]:
    """What the module offers that the dotted name of a call leads to; nothing without a dot."""
    name = typed.partition("(")[0].strip()
    if "." not in name:
        return {}
    from fidgpt.compose.names import offered_beside

    return offered_beside(name, kind)


def _modules(typed: str) -> list[Candidate]:
    """The modules beside a dotted name, each to be gone on with."""
    if "." not in typed or "(" in typed:
        return []
    from fidgpt.compose.names import modules_beside

    return [Candidate(f"{name}.", False) for name in modules_beside(typed)]


def _words_of(argument: dict) -> list[str]:
    """The words that an argument takes, by the text of its annotation."""
    annotation = argument.get("type", "")
    words = [word for name, some in _TYPES.items() if name in annotation for word in some]
    if "Literal[" in annotation:
        listed = annotation.partition("Literal[")[2].partition("]")[0]
        words += [word.strip().strip("'\"") for word in listed.split(",")]
    return words or [argument["default"]] if "default" in argument else words


def _told(argument: dict) -> str:
    default = f" = {argument['default']}" if "default" in argument else ""
    return f"{argument.get('type', '')}{default} {argument.get('doc', '')}".strip()


def _behind(prefix: str, found: Iterable[Candidate]) -> list[Candidate]:
    return [one.after(prefix) for one in found]


_SCRIPTS = {"train.py": "train", "sweep.py": "sweep"}
_NAMES = {f"fidgpt-{name}": name for name in COMMANDS}
_MODULES = {f"{package}.{name}": name for name in COMMANDS for package in ("fidgpt", "fidgpt.cli")}
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


def main(arguments: list[str]) -> None:
    """Prints one candidate a line, as the script of the shell reads them."""
    shell, text, *breaks = arguments
    line = read_line(text)
    if command_of(line.words):
        sys.path[:0] = folder_of_script(line.words)
        index = for_completion(
            with_knobs=needs_knobs(line),
            directives=list(said("config", line.words)),
            allowed=list(said("allow", line.words)),
        )
        found = candidates(line, index)
        for one in written(shell, line.current, found, *breaks):
            print(one)


if __name__ == "__main__":
    main(sys.argv[1:])

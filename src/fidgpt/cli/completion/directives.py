"""Completing a directive: its kind, the name or path after it, arguments and values."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fidgpt.cli.completion.files import complete_file
from fidgpt.cli.completion.paths import complete_path, knob_at
from fidgpt.cli.completion.word import Candidate
from fidgpt.cli.directives.spelling import KINDS
from fidgpt.cli.index.store import Index
from fidgpt.cli.showing.chosen import chosen_config

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
    from fidgpt.cli.index.modules import offered_beside  # late: most names have no dot

    return offered_beside(name, kind)


def _modules(typed: str) -> list[Candidate]:
    """The modules beside a dotted name, each to be gone on with."""
    if "." not in typed or "(" in typed:
        return []
    from fidgpt.cli.index.modules import modules_beside  # late, as above

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

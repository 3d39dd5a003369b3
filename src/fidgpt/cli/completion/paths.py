"""Completing a path one segment at a time, among the knobs of a config."""

import re
from collections.abc import Iterator, Sequence

from fidgpt.cli.completion.word import Candidate

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

"""The parameters of a config that can be set, with their documentation and values."""

import enum
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.compose.index import read
from fidgpt.graph import ConfigError, Inherited, nodes, resolve, title
from fidgpt.graph.docs import doc_of, first_sentence
from fidgpt.graph.fiddle import all_arguments, set_arguments
from fidgpt.graph.hints import element_hint, hint_of, members_of, name_of
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.spelling import Frame
from fidgpt.graph.walk import children, is_node, join, step_to


def choices_of(hint: Any) -> list[str]:
    """True and False, the names of an enum or Literal, None; empty where others fit too."""
    words: list[str] = []
    for member in members_of(hint):
        if member is bool:
            words += ["True", "False"]
        elif member in (None, type(None)):
            words.append("None")
        elif typing.get_origin(member) is typing.Literal:
            words += [str(value) for value in typing.get_args(member)]
        elif inspect.isclass(member) and issubclass(member, enum.Enum):
            words += [item.name for item in member]
    return words


Knob = dict[str, Any]

LONGEST = 120  # letters of a value


def knobs_of(root: fdl.Buildable, meet: Callable[[Any], None] = lambda _: None) -> list[Knob]:
    """One dict for each parameter and each element that is a part; `meet` is shown every hint.

    A part that several places hold is told once, where one reads it first; the others say `same`.
    """
    return _Reader(root, meet).read()


class _Reader:
    """Knows the graph around the places that are told."""

    def __init__(self, root: fdl.Buildable, meet: Callable[[Any], None]) -> None:
        self._root = root
        self._meet = meet
        self._heard = {(id(heard.part), heard.key): heard for heard in _heard(root)}
        self._paths = {id(node.value): node.path for node in nodes(root)}
        self._anonymous = _held_plain(root)

    def read(self) -> list[Knob]:
        knobs: list[Knob] = []
        left: list[tuple[str, Any, Any]] = [("", self._root, Any)]
        while left:
            path, value, hint = left.pop()
            below = []
            for knob, child, asked in self._inside(path, value, hint):
                self._meet(asked)
                knobs.append(knob)
                if is_node(child) and id(child) not in self._anonymous and "same" not in knob:
                    below.append((knob["path"], child, asked))
            left += reversed(below)
        return knobs

    def _inside(self, path: str, value: Any, hint: Any) -> list[tuple[Knob, Any, Any]]:
        if isinstance(value, fdl.Buildable):
            return [self._argument(path, value, key) for key in all_arguments(value)]
        found = []
        for key, (step, child) in zip(_keys(value), children(value), strict=True):
            asked = element_hint(hint, key)
            found.append((self._knob(join(path, step), asked, child), child, asked))
        return found

    def _argument(self, path: str, part: fdl.Buildable, key: Any) -> tuple[Knob, Any, Any]:
        value = all_arguments(part)[key]
        hint = hint_of(part, key)
        heard = self._heard.get((id(part), key))
        knob = self._knob(
            join(path, step_to(key)), hint, heard.binding.value if heard else value, heard
        )
        if not heard and key not in set_arguments(part):
            knob["unset"] = True
        tags = sorted(fdl.get_tags(part, key), key=lambda tag: tag.__name__)
        if tags:
            knob["tags"] = [tag.__name__ for tag in tags]
        own = doc_of(fdl.get_callable(part)).parameters.get(str(key), "")
        if doc := own or (first_sentence(tags[0].description) if tags else ""):
            knob["doc"] = doc
        return knob, fdl.NO_VALUE if heard or "unset" in knob else value, hint

    def _knob(self, path: str, hint: Any, value: Any, heard: Inherited | None = None) -> Knob:
        knob: Knob = {"path": path, "type": name_of(hint), "value": self._text(value)}
        if heard:
            knob["heard"] = heard.binding.path
        elif isinstance(value, fdl.Buildable) and not isinstance(value, TaggedValueCls):
            knob["part"] = title(value)
            if self._paths.get(id(value), path) != path:
                knob["same"] = self._paths[id(value)]
        elif is_node(value) and id(value) not in self._anonymous:
            knob["holds"] = True
        if choices := choices_of(hint):
            knob["choices"] = choices
        return knob

    def _text(self, value: Any) -> str:
        if value is fdl.NO_VALUE:
            return ""
        if isinstance(value, fdl.Buildable):
            return title(value)
        if is_node(value) and id(value) not in self._anonymous and len(value):
            shown = ", ".join(self._text(child) for _, child in children(value))
            text = f"{{{shown}}}" if isinstance(value, dict) else f"[{shown}]"
        else:
            text = leaf_text(value)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _held_plain(root: Any) -> set[int]:
    """The lists, tuples and dicts that hold no part anywhere, and read as one value."""
    plain: set[int] = set()
    for node in reversed(nodes(root)):  # children first
        value = node.value
        held = [] if isinstance(value, fdl.Buildable) else [child for _, child in children(value)]
        if not isinstance(value, fdl.Buildable) and all(
            not is_node(child) or id(child) in plain for child in held
        ):
            plain.add(id(value))
    return plain


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else list(range(len(value)))


def _heard(root: fdl.Buildable) -> list[Inherited]:
    try:
        return resolve(root)
    except ConfigError:  # a config that leaves something for the command line to say
        return []


def known_frames() -> dict[str, Frame]:
    """The frame of each config, by its directive; none where the index is not true any more."""
    index, is_true = read()
    knobs: Mapping[str, Any] = index["knobs"] if index and is_true else {}
    return {f"config:{name}": frame_from(told) for name, told in knobs.items()}


def frame_from(knobs: list[Knob]) -> Frame:
    """The frame of a graph of which the knobs are known; it may hold less than `frame_of` gives."""
    frame: Frame = {"": ("", {})}
    alone = _alone(knobs)
    for knob in knobs:
        above, step = _split(knob["path"])
        if above not in frame or "same" in knob or "heard" in knob:
            continue
        values = frame[above][1]
        if call := knob.get("part"):
            values[step] = call
            frame[knob["path"]] = call, {}
        elif "holds" in knob:
            if f"{knob['path']}[0]" in alone:
                values[step] = "list"
                frame[knob["path"]] = "list", {}
        elif len(knob["value"]) < LONGEST and not ("unset" in knob and "tags" in knob):
            values[step] = knob["value"]
    return frame


def _alone(knobs: list[Knob]) -> set[str]:
    """The paths of the items that are alone in their list."""
    paths = {knob["path"] for knob in knobs}
    firsts = [path for path in paths if path.endswith("[0]")]
    return {path for path in firsts if f"{path[:-3]}[1]" not in paths}


def _split(path: str) -> tuple[str, str]:
    """The path of what holds a place, and the step from there."""
    cut = max(path.rfind("."), path.rfind("["))
    return (path[:cut], path[cut:]) if cut > 0 else ("", f".{path}")

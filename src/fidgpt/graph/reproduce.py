"""Directives that reproduce a graph, checked by making it, and the texts of values in them."""

import contextlib
import enum
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt import errors
from fidgpt.graph import codec, expressions, fiddle, formulas, hints, walk
from fidgpt.graph.bound import BoundGraph
from fidgpt.graph.difference import changes as kinds
from fidgpt.graph.difference import comparison
from fidgpt.graph.paths import find_parameter

PartName = Callable[[Any], str]  # how directives call a constructor
_WORD = re.compile(r"[A-Za-z_][\w./-]*")
_RELATIVE = re.compile(r"\{before\} ([*+-]) (?:\((.*)\)|(.*))", re.DOTALL)


def _list_of(change: kinds.Change) -> str | None:
    """Return the path of the list or dict in which an item was added, moved or removed."""
    is_new = change.old.value is fdl.NO_VALUE and change.path.endswith("]")
    is_gone = change.new.path is None and re.search(r"\[\d+\]$", change.path)
    is_item = is_new or is_gone
    return change.path.rpartition("[")[0] if is_item else None


def directives_for(
    target: Any, changes: Iterable[kinds.Change], part_name: PartName, *, lists: bool
) -> list[str]:
    """Return directives that make changes in a graph, as far as directives can.

    Args:
      target: what it is to become.
      changes: the differences between the two.
      part_name: how to call a constructor.
      lists: whether to write out new nodes with all that is inside, and lists and dicts in which
        nodes were added, moved or removed: no directive adds or removes a single one.
    """
    changes = list(changes)
    whole = _whole_lists(target, changes, part_name, lists=lists)
    rest = (
        _directive(target, change, part_name, lists)
        for change in changes
        if not any(change.path.startswith(f"{path}[") for path in whole)
    )
    directives = dict.fromkeys([*whole.values(), *(text for text in rest if text)])
    # A call of a new node has its arguments.
    new = {d.partition(":")[2].partition("=")[0] for d in directives if d.startswith("use:")}
    paths = {d: d.partition("=")[0].rpartition(".")[0] for d in directives}
    return [d for d in directives if not (d[:4] == "set:" and paths[d][4:] in new)]


def _whole_lists(
    target: Any, changes: list[kinds.Change], part_name: PartName, *, lists: bool
) -> dict[str, str]:
    """Return the outermost lists and dicts in which items were added, moved or removed.

    Without `lists`, only those that hold no nodes any more.
    """
    texts: dict[str, str] = {}
    for path in sorted({path for change in changes if (path := _list_of(change))}, key=len):
        if any(path.startswith((f"{outer}[", f"{outer}.")) for outer in texts):
            continue
        with contextlib.suppress(errors.ConfigError):  # it is inside a node that is gone
            ref = find_parameter(target, path)
            is_spelled = lists or not walk.parts(ref.value)
            if is_spelled and (text := spell(ref.value, ref.hint, part_name)) is not None:
                texts[path] = f"set:{path}={text}"
    return texts


def _directive(target: Any, change: kinds.Change, part_name: PartName, is_deep: bool) -> str | None:
    path, new, old = change.old.path or change.new.path, change.new, change.old.value
    if not path or new.path not in (None, path) or isinstance(change, kinds.TagsChanged):
        return None  # it is inside an item that moved
    if _list_of(change) is not None:
        return None
    is_part = isinstance(new.value, fdl.Buildable)
    if isinstance(change, kinds.SharingChanged):
        if new.shared_with:
            return f"tie:{path}={new.shared_with}"
        return f"untie:{path}" if is_part else None
    if is_part and formulas.is_formula(new.value):
        return f"set:{path}{formula_text(new.value)}"
    if is_part and not isinstance(change, kinds.ValueChanged):
        known = fiddle.set_arguments(new.value)
        kept = fiddle.set_arguments(old) if isinstance(old, fdl.Buildable) else {}
        keys = [key for key in known if key not in kept or repr(kept[key]) != repr(known[key])]
        text = call_text(new.value, keys, part_name, is_deep=is_deep)
        replaces_value = not (isinstance(old, fdl.Buildable) or old is None or old is fdl.NO_VALUE)
        if replaces_value and hints.is_unknown(find_parameter(target, path).hint):
            return f"set:{path}={text}" if "(" in text else f"set:{path}={text}()"
        return f"use:{path}={text}"
    if new.is_default or new.inherited_from or new.value is fdl.NO_VALUE:
        return f"del:{path}"
    text = new.value if isinstance(new.value, str) else spell(new.value, type(new.value))
    return None if text is None else f"set:{path}={text}"


Compose = Callable[[Sequence[str]], Any]
_MOST_ROUNDS = 4  # a new node shows what is still to be set inside


class Repro(NamedTuple):
    """How to reproduce a graph.

    Attributes:
      directives: in order; the first one names the graph to begin with.
      left: the differences that no directive can make; with none, the graphs are equal.
      is_same: whether the fingerprints agree.
    """

    directives: list[str]
    left: list[kinds.Change]
    is_same: bool


def repro(
    root: Any,
    start: Sequence[str],
    *,
    compose: Compose,
    part_name: PartName = attrgetter("__qualname__"),
) -> Repro:
    """Return directives that make `root`: those given, and those that set what then differs.

    Args:
      root: the graph.
      start: directives that make a graph like it.
      compose: makes the graph of some directives.
      part_name: how a directive calls a constructor.

    Returns:
      The directives, checked by making the graph.

    Raises:
      ConfigError: a graph cannot be bound, or holds what has no name.
    """
    target = BoundGraph(root)

    def left_by(directives: Sequence[str]) -> list[kinds.Change] | None:
        try:
            return list(comparison.diff(compose(directives), target))
        except errors.ConfigError:
            return None

    directives = _last_of_each(start)
    left = left_by(directives)
    # Lists are written out where nothing shorter makes the graph.
    for lists in [False] * _MOST_ROUNDS + [True] * _MOST_ROUNDS:
        more = directives_for(root, left or (), part_name, lists=lists)
        added = _last_of_each([*directives, *more])
        if more and left_by(added) is None:
            added = directives
            for text in more:  # keep the ones that can be applied
                added = added if left_by([*added, text]) is None else [*added, text]
        now = left_by(added) if added != directives else None
        if now is not None and str(now) != str(left):
            directives, left = added, now
    is_same = not left and BoundGraph(compose(directives)).fingerprint() == target.fingerprint()
    return Repro(directives, left or [], is_same)


def _last_of_each(directives: Sequence[str]) -> list[str]:
    """Return directives without those that set what a later one sets; calls and changes stay."""
    names = [
        name if name.startswith(("set:", "tag:", "use:")) and name[-1] not in "+-*/" else i
        for i, name in enumerate(directive.partition("=")[0] for directive in directives)
    ]
    last = {name: i for i, name in enumerate(names)}
    return [directive for i, directive in enumerate(directives) if last[names[i]] == i]


def nearest(root: Any, bases: Mapping[str, Any]) -> str:
    """Return the name of the graph that differs least from `root`.

    Raises:
      ConfigError: there is no graph to choose, or one cannot be bound.
    """
    if not bases:
        raise errors.ConfigError("there is no config to start from.")
    target = BoundGraph(root)
    return min(bases, key=lambda name: len(comparison.diff(bases[name], target)))


def spell(
    value: Any, hint: Any, part_name: PartName | None = None, *, is_item: bool = False
) -> str | None:
    """Return the text that reads as a value of type `hint`; None where there is none.

    Args:
      value: the value.
      hint: its annotation.
      part_name: how to call a constructor; None to spell no nodes.
      is_item: whether the text stands between commas.
    """
    if formulas.is_formula(value):
        return str(fiddle.set_arguments(value)["text"])
    if isinstance(value, fdl.Buildable):
        keys = fiddle.set_arguments(value)
        return part_name and call_text(value, keys, part_name, is_deep=True)
    if isinstance(value, list | tuple | dict):
        has_parts = bool(walk.parts(value))
        items = _items(value, hint, part_name if has_parts else None)
        if has_parts:
            return None if isinstance(value, tuple) else items
        texts = [repr(value), items]
    elif isinstance(value, str | pathlib.PurePath):
        text = str(value)
        texts = [repr(text)] if is_item and not _WORD.fullmatch(text) else [text, repr(text)]
    elif isinstance(value, enum.Enum):
        texts = [value.name]
    elif type(value).__module__ == "torch":
        texts = [str(value).removeprefix("torch."), str(value)]
    else:
        texts = [repr(value), str(value)]
    return next((text for text in texts if text and _reads_as(text, hint, value)), None)


def call_text(
    part: fdl.Buildable, keys: Iterable[Any], part_name: PartName, *, is_deep: bool
) -> str:
    """Return a call with the arguments, among some, that have a text and no tag.

    Args:
      part: the node to call.
      keys: the arguments.
      part_name: how to call a constructor.
      is_deep: whether inner nodes are written too, and a call without arguments with parentheses.
    """
    known, inner = fiddle.set_arguments(part), part_name if is_deep else None
    texts = {
        key: spell(known[key], hints.hint_of(part, key), inner, is_item=True)
        for key in keys
        if isinstance(key, str) and not fdl.get_tags(part, key)
    }
    arguments = ", ".join(f"{key}={text}" for key, text in texts.items() if text is not None)
    return part_name(fdl.get_callable(part)) + (f"({arguments})" if arguments or is_deep else "")


def formula_text(part: fdl.Buildable) -> str:
    """Return the sign and text that set a formula: `=...`, or `*=...` for one of its old value."""
    arguments = fiddle.set_arguments(part)
    match = _RELATIVE.fullmatch(arguments["text"])
    if match is None or "before" not in (arguments.get("values") or {}):
        return f"={arguments['text']}"
    return f"{match[1]}={match[2] or match[3]}"


def _items(value: Any, hint: Any, part_name: PartName | None) -> str | None:
    """Return a container with each item spelled by its own annotation."""

    def item(element: Any, asked: Any) -> str | None:
        if isinstance(element, str | pathlib.PurePath):
            return repr(str(element))
        text = spell(element, asked, part_name, is_item=True)
        return repr(element) if text is None and part_name is None else text

    if isinstance(value, dict):
        pairs = [
            (item(k, hints.key_hint(hint)), item(v, hints.element_hint(hint, k)))
            for k, v in value.items()
        ]
        texts = [text and f"{key}: {text}" for key, text in pairs]
    else:
        texts = [item(element, hints.element_hint(hint, i)) for i, element in enumerate(value)]
    if None in texts:
        return None
    form = {dict: "{%s}", tuple: "(%s,)"}.get(type(value), "[%s]")
    return form % ", ".join(map(str, texts))


def _reads_as(text: str, hint: Any, value: Any) -> bool:
    try:
        return codec.is_same(expressions.read_value(text, hint), value)
    except errors.ConfigError:
        return False

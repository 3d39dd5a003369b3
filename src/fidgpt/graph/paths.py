"""Paths that lead to the nodes and parameters of a graph."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.assignments import record_item
from fidgpt.graph.errors import ConfigError, MissingEntry, listed, nearest, suggest
from fidgpt.graph.fiddle import (
    Key,
    all_arguments,
    assign,
    default_factory_of,
    default_of,
    has_factory,
    named_defaults,
    parameter_of,
    unset,
)
from fidgpt.graph.hints import can_be_typed, element_hint, fits, hint_of, is_unknown, name_of
from fidgpt.graph.requirements import asked
from fidgpt.graph.walk import IS_PART, is_node, join, parts, step_to, title


def meant(functions: Iterable[Any], name: str, *, sign: str = ":") -> list[Any]:
    """Those of some functions that have a name, and the classes that inherit from one that has it.

    A dotted name is that of a module, or the end of one, before the function's own: of the module
    where it is written, or of one that exports it. In a selector, a sign stands before it.

    Raises:
      ConfigError: it is the name of several classes of which none inherits from the other.
    """
    found = [(function, named) for function in functions if (named := _named(function, name))]
    paths = {path_of(one): one for _, named in found for one in named}
    first = [path for path, one in paths.items() if not _inherits(one, paths.values())]
    if len(first) > 1:
        written = " or ".join(f"{sign}{path}" for path in first)
        raise ConfigError(f"{name} is the name of {' and of '.join(first)}: write {written}.")
    return [function for function, _ in found]


def is_named(functions: Iterable[Any], name: str) -> bool:
    """Whether there is any such function or class."""
    return any(_named(function, name) for function in functions)


def path_of(function: Any) -> str:
    """The name of a function or class with the module in which it is written."""
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '')}.{name}"


def nobody_carries(tag: Any, carried: Iterable[Any], *, where: str) -> str:
    """That no parameter carries a tag, and which ones they carry."""
    known = {one.__name__: one for one in carried}
    begin = f"no parameter of {where} carries the tag"
    if tag.__name__ not in known:
        nearest = suggest(tag.__name__, known)
        return f"{begin} {tag.__name__}, so nothing would change. {nearest}"
    other = path_of(known[tag.__name__])
    return (
        f"{begin} {path_of(tag)}, so nothing would change. Another one has that name, {other}: "
        f"say tag:{other}=..., or give a parameter your tag first."
    )


def _named(function: Any, name: str) -> list[Any]:
    """The function, or those of a class and of what it inherits from, that have a name."""
    bare = name.rpartition(".")[2]
    own = function.__mro__ if isinstance(function, type) else (function,)
    named = [one for one in own if getattr(one, "__name__", "") == bare]
    return named if bare == name else [one for one in named if _is_at(one, name)]


def _is_at(one: Any, dotted: str) -> bool:
    if f".{path_of(one)}".endswith(f".{dotted}"):
        return True
    place, _, bare = dotted.rpartition(".")
    package = path_of(one).partition(".")[0]
    return any(
        getattr(module, bare, None) is one
        for path, module in list(sys.modules.items())
        if path.partition(".")[0] == package and f".{path}".endswith(f".{place}")
    )


def _inherits(one: Any, others: Iterable[Any]) -> bool:
    return isinstance(one, type) and any(
        isinstance(other, type) and other is not one and issubclass(one, other) for other in others
    )


Within = tuple[fdl.Buildable, Key, str]  # a part, one of its arguments, and the steps from there
Opened = tuple[fdl.Buildable, Key, fdl.Buildable]  # a part, one of its arguments, and its value


@dataclass(frozen=True, slots=True)
class ParameterRef:
    """Where a path leads.

    Attributes:
      container: the part, list, tuple or dict that holds the place.
      key: the place in it.
      hint: what the annotation asks there.
      path: the whole path.
      holder: the path of the container.
      within: of an item of a list or dict, the part and the argument that it lies in, and the
        steps from there.
      opens: parts that stand for a default on the way, each with the part and the argument that
        will hold it as soon as a value is put here.
    """

    container: Any
    key: Key
    hint: Any
    path: str
    holder: str
    within: Within | None = None
    opens: tuple[Opened, ...] = ()

    @property
    def value(self) -> Any:
        """The value now, or `fdl.NO_VALUE` where nobody set one."""
        if IS_PART[type(self.container)]:
            return self.container.__arguments__.get(self.key, fdl.NO_VALUE)
        return self.container[self.key]

    def refuse(self, value: Any) -> None:
        """Says why a value may not be put here, and changes nothing.

        Raises:
          ConfigError: the value does not fit the annotation, or puts a plain value in the place
            of a part, or would change a tuple.
        """
        if isinstance(self.container, tuple):
            raise ConfigError(f"{self.holder} is a tuple: set it whole, as {self.container!r:.60}.")
        if not fits(value, self.hint):
            why = f"{self.path} takes {name_of(self.hint)}, not {describe(value)}."
            raise ConfigError(why + asked(value, self.hint))
        if not is_unknown(self.hint) or isinstance(value, fdl.Buildable):
            return
        if isinstance(self.value, fdl.Buildable):
            raise ConfigError(
                f"{self.path} is the part {title(self.value)}, which {describe(value)} "
                "cannot replace: set one of its parameters."
            )

    def put(self, value: Any) -> None:
        """Sets the value, as an assignment in Python would.

        Raises:
          ConfigError: as `refuse` does.
        """
        self.refuse(value)
        self.fill(value)

    def fill(self, value: Any) -> None:
        """Sets a value that `refuse` had nothing against."""
        container = self.container
        if self.opens:
            container = self.opens[0][0]
        for _, key, opened in self.opens:
            if key not in container.__arguments__:  # another place may have opened it since
                assign(container, key, opened)
            container = container.__arguments__[key]
        if IS_PART[type(container)]:
            assign(container, self.key, value)
            return
        self.container[self.key] = value
        if self.within:
            record_item(*self.within, value)

    def clear(self) -> None:
        """Takes the value away, so that the default stands or the quantity is open again."""
        if self.value is fdl.NO_VALUE:
            return
        if IS_PART[type(self.container)]:
            unset(self.container, self.key)
        else:
            del self.container[self.key]


def inside_of(above: ParameterRef, key: Key) -> Within | None:
    """The part and the argument that an item of a list or dict lies in, and the steps to it."""
    if isinstance(above.container, fdl.Buildable):
        return above.container, above.key, f"[{key!r}]"
    if above.within is None:
        return None
    part, argument, steps = above.within
    return part, argument, f"{steps}[{key!r}]"


def describe(value: Any) -> str:
    """A value in a message: what a part calls, or a plain value and its type."""
    if isinstance(value, fdl.Buildable):
        return f"the part {title(value)}"
    if isinstance(value, list | tuple | dict) and parts(value):
        count = f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
        return f"a {type(value).__name__} of {count} with parts in it"
    return f"{value!r:.60} ({type(value).__name__})"


TEXT = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_STEP = re.compile(rf"\.?([A-Za-z_]\w*)|\[(-?[0-9]{{1,9}})\]|\[({TEXT})\]")

_REMEDIES = (  # for what is found where a step should begin
    (r"\.?[0-9]", " An item is written [0]."),
    (r"\[[A-Za-z_]", " An entry of a dict is written ['name'], or .name."),
    (r"[/\\]", " Steps are joined by dots."),
    (r"[A-Za-z_]", " A dot is missing."),
    (r"\.$", " A name is missing."),
    (r"[+~]", " Nothing stands before a path: += behind it adds items, and del: takes away."),
    (r"\*\*|\.\*\*", " Any depth is written **.name, with a name after it."),
    (r"\.?\*", " All items are written [*], all depths **.name."),
)


def parse_path(path: str) -> list[Key]:
    """The keys that a path names, in order.

    Raises:
      ConfigError: the text is not a path.
    """
    keys: list[Key] = []
    at = 0
    while at < len(path):
        key, at = key_at(path, at)
        keys.append(key)
    if not keys:
        raise ConfigError("the path is empty: name a parameter, such as model.hidden_dim.")
    return keys


def key_at(path: str, at: int) -> tuple[Key, int]:
    """The key that begins at a position of a path, and the position after it.

    Raises:
      ConfigError: none begins there.
    """
    match = _STEP.match(path, at)
    if match is None or (at and match[1] and path[at] != "."):
        remedy = next((how for what, how in _REMEDIES if re.match(what, path[at:])), "")
        raise ConfigError(
            f"{path!r:.80} is not a path: it goes wrong at {path[at:]!r:.40}.{remedy}"
        )
    return match[1] or (int(match[2]) if match[2] else _unquoted(match[3])), match.end()


def find_parameter(root: Any, path: str) -> ParameterRef:
    """Follows a path to the parameter or element that it names, set or not.

    Raises:
      ConfigError: a name on the way does not exist; the nearest ones are suggested.
    """
    return follow(root, parse_path(path), path)


def follow(root: Any, keys: list[Key], path: str) -> ParameterRef:
    """The place that keys lead to, one after the other; `path` is how messages call it.

    Raises:
      ConfigError: as `find_parameter` does.
    """
    part, walked, start = _last_part(root, keys)
    place = _argument(root, part, keys[start], walked) if start else None
    for key in keys[start + bool(start) :]:
        place = _step(root, place, key, path)
    assert place is not None  # a path has at least one key
    if isinstance(place.value, TaggedValueCls):  # a quantity in a list keeps its tag
        return ParameterRef(place.value, "value", place.hint, place.path, place.holder)
    return place


def _last_part(root: Any, keys: list[Key]) -> tuple[Any, str, int]:
    """The last part on a way, its path, and how many keys lead to it; the root where none does.

    What may stand in its parameters is its own affair, whatever lies before it.
    """
    found, steps, value = (root, "", 0), "", root
    for i, key in enumerate(keys[:-1]):
        if IS_PART[type(value)] and isinstance(key, str):
            steps += f".{key}"
            value = value.__arguments__.get(key)
        elif isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
            steps += f"[{key}]"
            value = value[key]
        else:
            break
        if IS_PART[type(value)]:
            found = value, steps.removeprefix("."), i + 1
    return found


def _unquoted(text: str) -> str:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise ConfigError(f"{text:.40} is no text as Python writes it.") from None


def _step(root: Any, above: ParameterRef | None, key: Key, path: str) -> ParameterRef:
    if above is None:
        if _is_part(root):
            return _argument(root, root, key, "")
        return _entry(root, _from_the_start(root, key), Any, "")
    value = above.value
    if _is_part(value):
        return _argument(root, value, key, above.path, above.opens)
    if value is fdl.NO_VALUE:
        opened = _opened(above, path)
        opens = (*above.opens, (above.container, above.key, opened))
        return _argument(root, opened, key, above.path, opens)
    if not is_node(value):
        raise ConfigError(f"{above.path} is {describe(value)}, so there is nothing at {path}.")
    key = _from_the_start(value, key)
    return _entry(value, key, above.hint, above.path, inside_of(above, key))


def _is_part(value: Any) -> bool:
    return isinstance(value, fdl.Buildable)


def _from_the_start(container: Any, key: Key) -> Key:
    """The number of an item that was counted from the end, so that each place has one path."""
    if not isinstance(container, list | tuple) or not isinstance(key, int):
        return key
    return key + len(container) if -len(container) <= key < 0 else key


def _opened(place: ParameterRef, path: str) -> fdl.Buildable:
    """A part for what the default factory of a parameter would make."""
    factory = default_factory_of(place.container, place.key)
    if factory is None or not (isinstance(factory, type) or inspect.signature(factory).parameters):
        raise ConfigError(_nothing_at(place, path))
    is_called_later = isinstance(place.container, fdl.Partial | fdl.ArgFactory)
    return (fdl.ArgFactory if is_called_later else fdl.Config)(factory)


def _nothing_at(place: ParameterRef, path: str) -> str:
    message = f"{place.path} is not set, so there is nothing at {path}."
    if has_factory(place.container, place.key):
        return f"{message} Its default is made anew by the code: set it whole, set:{place.path}=..."
    default = type(default_of(place.container, place.key))
    if default in (type(None), type(fdl.NO_VALUE)) and not can_be_typed(place.hint):
        return f"{message} Put a part there first, use:{place.path}=..."
    if default in (list, dict, tuple):
        return f"{message} Its default belongs to the code: set it whole, set:{place.path}=..."
    if default.__module__ == "builtins" or default is type(fdl.NO_VALUE):
        return message
    return (
        f"{message} Its default, of type {default.__name__}, belongs to the code: put a part of "
        f"your own there first, set:{place.path}={default.__name__}(...)."
    )


def _entry(
    container: Any, key: Key, hint: Any, walked: str, within: Within | None = None
) -> ParameterRef:
    is_known = -len(container) <= key < len(container) if isinstance(key, int) else False
    if isinstance(container, dict):
        is_known = key in container
    if not is_known:
        raise MissingEntry(_no_such_entry(container, key, walked), place=walked)
    hint = element_hint(hint, key)
    return ParameterRef(container, key, hint, f"{walked}[{key!r}]", walked, within)


def own_key(part: fdl.Buildable, key: Key) -> Key | None:
    """The key under which a part holds an argument; None where it takes no such argument."""
    if isinstance(key, str) and key in (named_defaults(part) or ()):
        return key
    parameter = parameter_of(part, key)
    if parameter is None or (isinstance(key, int) and key not in all_arguments(part)):
        return None
    if isinstance(key, str) and parameter.kind is parameter.POSITIONAL_ONLY:
        return list(part.__signature_info__.parameters).index(key)
    return key


def _argument(
    root: Any, part: fdl.Buildable, key: Key, walked: str, opens: tuple[Opened, ...] = ()
) -> ParameterRef:
    own = own_key(part, key)
    if own is None:
        raise ConfigError(_no_such_name(root, part, key, walked))
    path = join(walked, step_to(own))
    return ParameterRef(part, own, hint_of(part, own), path, walked, None, opens)


def _no_such_entry(container: Any, key: Key, walked: str) -> str:
    if isinstance(container, dict):
        return f"{walked} has no entry {key!r}. {suggest(str(key), map(str, container))}"
    count = f"{len(container)} {'entry' if len(container) == 1 else 'entries'}, counted from 0"
    return f"{walked} has {count if container else 'no entries'}; there is no {key!r} in it."


def _no_such_name(root: Any, part: fdl.Buildable, key: Key, walked: str) -> str:
    names = [str(name) for name in all_arguments(part)]
    where = f"{walked} ({title(part)})" if walked else title(part)
    elsewhere = [
        join(node.path, step_to(key)) for node in parts(root) if key in all_arguments(node.value)
    ]
    if not elsewhere or nearest(str(key), names):
        return f"{where} has no parameter {key!r}. {suggest(str(key), names)}"
    return f"{where} has no parameter {key!r}. It exists at {listed(elsewhere, most=3)}."

"""Paths such as `model.blocks[0].attention.window`: reading, following and assigning them."""

import ast
import re
from dataclasses import dataclass
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.annotations import is_unknown
from fidgpt.graph.arguments import Key, assign, every, given, parameter_of
from fidgpt.graph.errors import ConfigError, listed, nearest, suggest
from fidgpt.graph.hints import element_hint, fits, hint_of, name_of
from fidgpt.graph.walk import is_node, join, parts, step_to, title

_TEXT = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_STEP = re.compile(rf"\.?([A-Za-z_]\w*)|\[(-?[0-9]{{1,9}})\]|\[({_TEXT})\]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads.

    Attributes:
      container: the part, list, tuple or dict that holds the place.
      key: the place in it.
      hint: what the annotation asks there.
      path: the whole path.
      holder: the path of the container.
    """

    container: Any
    key: Key
    hint: Any
    path: str
    holder: str

    @property
    def value(self) -> Any:
        """The value now, or `fdl.NO_VALUE` where nobody set one."""
        if isinstance(self.container, fdl.Buildable):
            return given(self.container).get(self.key, fdl.NO_VALUE)
        return self.container[self.key]

    def put(self, value: Any) -> None:
        """Sets the value, as an assignment in Python would.

        Raises:
          ConfigError: the value does not fit the annotation, or puts a plain value in the place
            of a part, or would change a tuple.
        """
        if isinstance(self.container, tuple):
            raise ConfigError(f"{self.holder} is a tuple: set it whole, as {self.container!r:.60}.")
        if not fits(value, self.hint):
            raise ConfigError(f"{self.path} takes {name_of(self.hint)}, not {_describe(value)}.")
        replaces_part = isinstance(self.value, fdl.Buildable)
        if replaces_part and is_unknown(self.hint) and not isinstance(value, fdl.Buildable):
            raise ConfigError(
                f"{self.path} is the part {title(self.value)}, which {_describe(value)} "
                "cannot replace: set one of its parameters."
            )
        if isinstance(self.container, fdl.Buildable):
            assign(self.container, self.key, value)
        else:
            self.container[self.key] = value


def parse_path(path: str) -> list[Key]:
    """The keys that a path names, in order.

    Raises:
      ConfigError: the text is not a path.
    """
    keys: list[Key] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None or (keys and match[1] and path[at] != "."):
            raise ConfigError(f"{path!r:.80} is not a path: it goes wrong at {path[at:]!r:.40}.")
        keys.append(match[1] or (int(match[2]) if match[2] else _unquoted(match[3])))
        at = match.end()
    if not keys:
        raise ConfigError("the path is empty: name a parameter, such as model.hidden_dim.")
    return keys


def find_place(root: Any, path: str) -> Place:
    """Follows a path to the parameter or element that it names, set or not.

    Raises:
      ConfigError: a name on the way does not exist; the nearest ones are suggested.
    """
    first, *others = parse_path(path)
    place = _step(root, root, first, Any, "")
    for key in others:
        if place.value is fdl.NO_VALUE:
            raise ConfigError(f"{place.path} is not set, so there is nothing at {path}.")
        if not is_node(place.value):
            raise ConfigError(
                f"{place.path} is {_describe(place.value)}, so there is nothing at {path}."
            )
        place = _step(root, place.value, key, place.hint, place.path)
    if isinstance(place.value, TaggedValueCls):  # a quantity in a list keeps its tag
        return Place(place.value, "value", place.hint, place.path, place.holder)
    return place


def _unquoted(text: str) -> str:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise ConfigError(f"{text:.40} is no text as Python writes it.") from None


def _step(root: Any, container: Any, key: Key, hint: Any, walked: str) -> Place:
    if isinstance(container, fdl.Buildable):
        return _argument(root, container, key, walked)
    is_known = -len(container) <= key < len(container) if isinstance(key, int) else False
    if isinstance(container, dict):
        is_known = key in container
    if not is_known:
        raise ConfigError(_no_such_entry(container, key, walked))
    return Place(container, key, element_hint(hint, key), f"{walked}[{key!r}]", walked)


def _argument(root: Any, part: fdl.Buildable, key: Key, walked: str) -> Place:
    parameter = parameter_of(part, key)
    if parameter is None or (isinstance(key, int) and key not in every(part)):
        raise ConfigError(_no_such_name(root, part, key, walked))
    if isinstance(key, str) and parameter.kind is parameter.POSITIONAL_ONLY:
        key = list(part.__signature_info__.parameters).index(key)
    return Place(part, key, hint_of(part, key), join(walked, step_to(key)), walked)


def _no_such_entry(container: Any, key: Key, walked: str) -> str:
    if isinstance(container, dict):
        return f"{walked} has no entry {key!r}. {suggest(str(key), map(str, container))}"
    count = f"{len(container)} {'entry' if len(container) == 1 else 'entries'}, counted from 0"
    return f"{walked} has {count if container else 'no entries'}; there is no {key!r} in it."


def _no_such_name(root: Any, part: fdl.Buildable, key: Key, walked: str) -> str:
    names = [str(name) for name in every(part)]
    where = f"{walked} ({title(part)})" if walked else title(part)
    elsewhere = [join(node.path, step_to(key)) for node in parts(root) if key in every(node.value)]
    if not elsewhere or nearest(str(key), names):
        return f"{where} has no parameter {key!r}. {suggest(str(key), names)}"
    return f"{where} has no parameter {key!r}. It exists at {listed(elsewhere, most=3)}."


def _describe(value: Any) -> str:
    if isinstance(value, fdl.Buildable):
        return f"the part {title(value)}"
    return f"{value!r:.60} ({type(value).__name__})"

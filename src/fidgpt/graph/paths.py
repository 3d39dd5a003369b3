"""Paths such as `model.blocks[0].mlp`: their syntax, and the parameters to which they lead."""

import ast
import re
from dataclasses import dataclass
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.errors import ConfigError, MissingEntry, listed, nearest, suggest
from fidgpt.graph import fiddle, hints
from fidgpt.graph.walk import IS_PART, is_node, join, parts, step_to, title

TEXT = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"  # of a class or tag, maybe with keys behind it
_STEP = re.compile(
    rf"\.?(?P<name>[A-Za-z_]\w*)|\[(?P<number>-?[0-9]{{1,9}})\]|\[(?P<text>{TEXT})\]"
    r"|\.?(?P<deep>\*\*)(?=[.:@\[])|(?P<all>\[\*\])"
    r"|\[(?P<slice>-?[0-9]{0,9}:-?[0-9]{0,9}(?::-?[1-9][0-9]{0,8})?)\]"
    rf"|:(?P<called>{_NAME})|\.?@(?P<tag>{_NAME})"
)
_EXAMPLES = "model.blocks[*].dropout, **.dropout, :RMSNorm.eps or @LearningRate"
Step = tuple[str, Any]  # the kind of a step of a selector, and what it names


def parse_path(path: str) -> list[fiddle.Key]:
    """Return the keys that a path names, in order; raise ConfigError if it is not a path."""
    return [key for _, key in parse_selector(path, is_path=True)]


def parse_selector(path: str, *, is_path: bool = False) -> list[Step]:
    """Return the steps of a selector, in order; the steps of a path are of kind `key`.

    Raises:
      ConfigError: the text is none.
    """
    if not path:
        raise ConfigError(f"the path is empty: name a parameter, such as {_EXAMPLES}.")
    steps: list[Step] = []
    at = 0
    while at < len(path):
        step, at = step_at(path, at, is_path=is_path)
        steps.append(step)
    return steps


def step_at(text: str, at: int, *, is_path: bool = True) -> tuple[Step, int]:
    """Return the step that begins at a position of a path or selector, and the position after it.

    Raises:
      ConfigError: none begins there.
    """
    match = _STEP.match(text, at)
    kind = (match and match.lastgroup) or ""
    is_key = kind in ("name", "number", "text")
    without_dot = kind == "name" and at > 0 and text[at] != "."
    if match is None or without_dot or (is_path and not is_key):
        raise ConfigError(
            f"{text!r:.80} is not a path: invalid at {text[at:]!r:.40}. Write, for example, "
            "model.blocks[0].dropout."
        )
    named: Any = match[kind]
    if kind == "text":
        try:
            named = ast.literal_eval(named)
        except (ValueError, SyntaxError):
            raise ConfigError(f"{named:.40} is not a Python string.") from None
    step = ("key", int(named) if kind == "number" else named) if is_key else (kind, named)
    return step, match.end()


@dataclass(eq=False, slots=True)
class ParameterRef:
    """A parameter of a node, or an item of a list, tuple or dict, set or not.

    Attributes:
      container: the node that holds it.
      key: the name or number of the parameter, or the index or key of the item.
      above: the reference that leads to the container; None for a reference to the root.
    """

    container: Any
    key: fiddle.Key
    above: "ParameterRef | None" = None

    @classmethod
    def to_root(cls, root: Any) -> "ParameterRef":
        """Return the reference to the root of a graph, which has an empty path."""
        return cls((root,), 0)

    @property
    def value(self) -> Any:
        """The value now, or `fdl.NO_VALUE` if the parameter is not set."""
        if IS_PART[type(self.container)]:
            return fiddle.raw_arguments(self.container).get(self.key, fdl.NO_VALUE)
        return self.container[self.key]

    @property
    def path(self) -> str:
        """The path, by way of the containers above."""
        if self.above is None or isinstance(self.container, TaggedValueCls):
            return self.above.path if self.above else ""  # a tag reads like its one argument
        is_part = IS_PART[type(self.container)]
        return join(self.above.path, step_to(self.key) if is_part else f"[{self.key!r}]")

    @property
    def hint(self) -> Any:
        """The annotation that applies."""
        if self.above is None:
            return Any
        if isinstance(self.container, TaggedValueCls):
            return self.above.hint
        if IS_PART[type(self.container)]:
            return hints.hint_of(self.container, self.key)
        return hints.element_hint(self.above.hint, self.key)

    @property
    def owner(self) -> tuple[fdl.Buildable, fiddle.Key, str] | None:
        """The argument that contains it, as node and key, and the steps from there to an item."""
        if self.above is None or IS_PART[type(self.container)]:
            return (self.container, self.key, "") if self.above else None
        owner = self.above.owner
        return owner and (owner[0], owner[1], f"{owner[2]}[{self.key!r}]")

    def check(self, value: Any) -> None:
        """Refuse a value that may not be set here.

        Raises:
          ConfigError: the value does not fit the annotation, would replace a node by a plain
            value, or would change a tuple.
        """
        if isinstance(self.container, tuple) and self.above:
            whole = f"set it whole, as {self.container!r:.60}."
            raise ConfigError(f"{self.above.path} is a tuple: {whole}")
        if value is fdl.NO_VALUE:
            if isinstance(self.container, list) and self.above:
                why = f"{self.path} is an item of a list, and has no default"
                raise ConfigError(f"{why}: set {self.above.path} whole.")
            return
        if not hints.fits(value, self.hint):
            why = f"{self.path} takes {hints.name_of(self.hint)}, not {describe(value)}."
            raise ConfigError(why + hints.missing_methods(value, self.hint))
        if not hints.is_unknown(self.hint) or isinstance(value, fdl.Buildable):
            return
        if isinstance(self.value, fdl.Buildable):
            raise ConfigError(
                f"{self.path} is the component {title(self.value)}, which {describe(value)} "
                "cannot replace: set one of its parameters."
            )

    def set(self, value: Any) -> None:
        """Set the value, as an assignment in Python would.

        Raises:
          ConfigError: as `check` does.
        """
        self.check(value)
        self.write(value)

    def write(self, value: Any) -> None:
        """Set a value that `check` accepts, and record the assignment.

        With `fdl.NO_VALUE` the default applies, or the parameter inherits again.
        """
        if value is fdl.NO_VALUE:
            if self.value is not value and IS_PART[type(self.container)]:
                fiddle.unset(self.container, self.key)
            elif self.value is not value:
                del self.container[self.key]
            return
        if IS_PART[type(self.container)]:
            fiddle.assign(self.container, self.key, value)
            return
        self.container[self.key] = value
        if self.owner:
            part, key, steps = self.owner
            fiddle.record_value(part, f"{key}{steps}", value)


def describe(value: Any) -> str:
    """Describe a value in a message: what a node calls, or a plain value and its type."""
    if isinstance(value, fdl.Buildable):
        return f"the component {title(value)}"
    if isinstance(value, list | tuple | dict) and parts(value):
        return f"a {type(value).__name__} of {num_entries(value)} with components in it"
    return "not set" if value is fdl.NO_VALUE else f"{value!r:.60} ({type(value).__name__})"


def num_entries(value: Any) -> str:
    """Return how many entries a list, tuple or dict has, in words."""
    return f"{len(value) or 'no'} {'entry' if len(value) == 1 else 'entries'}"


def path_of(function: Any) -> str:
    """Return the name of a function or class with the module that defines it."""
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '')}.{name}"


def find_parameter(root: Any, path: str) -> ParameterRef:
    """Follow a path to the parameter or item that it names, set or not.

    Raises:
      ConfigError: a name on the way does not exist; the nearest ones are suggested.
    """
    return follow(root, parse_path(path), path)


def follow(root: Any, keys: list[fiddle.Key], path: str) -> ParameterRef:
    """Follow keys from the root; `path` is what messages call them.

    Raises:
      ConfigError: as `find_parameter` does.
    """
    ref = ParameterRef.to_root(root)
    for key in keys:
        if inner := inside(ref, key):
            ref = inner
        elif ref.value is fdl.NO_VALUE:
            raise _nothing_set(ref, path)
        else:
            raise _nothing_at(root, ref, key, path)
    return unwrapped(ref)


def inside(ref: ParameterRef, key: fiddle.Key) -> ParameterRef | None:
    """Return the parameter or item that a key names in a value; None if it has no such one."""
    value = ref.value
    if IS_PART[type(value)]:
        own = own_key(value, key)
        return None if own is None else ParameterRef(value, own, ref)
    if isinstance(value, dict):
        return ParameterRef(value, key, ref) if key in value else None
    if isinstance(value, list | tuple) and isinstance(key, int) and -len(value) <= key < len(value):
        return ParameterRef(value, key % len(value), ref)  # from the start: one path for each
    return None


def own_key(part: fdl.Buildable, key: fiddle.Key) -> fiddle.Key | None:
    """Return the key under which a node holds an argument; None if it takes no such argument.

    A constructor may know arguments by other names too, which it declares as `ALIASES`.
    """
    if isinstance(key, str) and key in (fiddle.named_defaults(part) or ()):
        return key
    parameter = fiddle.parameter_of(part, key)
    if parameter is None and (alias := fiddle.aliases_of(part).get(str(key))):
        return alias
    if parameter is None or (isinstance(key, int) and key not in fiddle.all_arguments(part)):
        return None
    if isinstance(key, str) and parameter.kind is parameter.POSITIONAL_ONLY:
        return list(fiddle.parameters_of(part)).index(key)
    return key


def unwrapped(ref: ParameterRef) -> ParameterRef:
    """Return the reference to the value of a tagged item of a list, so that it keeps its tag."""
    value = ref.value
    return ParameterRef(value, "value", ref) if isinstance(value, TaggedValueCls) else ref


def _nothing_set(ref: ParameterRef, path: str) -> ConfigError:
    """Return the error of a path that leads through a parameter that is not set."""
    message = f"{ref.path} is not set, so there is nothing at {path}."
    if not hints.can_be_typed(ref.hint):
        message += f" Set a component there first, use:{ref.path}=..."
    return ConfigError(message)


def _nothing_at(root: Any, ref: ParameterRef, key: fiddle.Key, path: str) -> ConfigError:
    value, where = ref.value, ref.path
    if isinstance(value, fdl.Buildable):
        return _no_such_name(root, value, key, where)
    if isinstance(value, dict):
        why = f"{where} has no entry {key!r}. {suggest(str(key), map(str, value))}"
        return MissingEntry(why, place=where)
    if is_node(value):
        if not isinstance(key, int):
            return ConfigError(
                f"{where} is a {title(value)}, so there is no item {key!r}: {where}[0] is its "
                f"first, and {where}[*] are all."
            )
        counted = ", counted from 0" if value else ""
        why = f"{where} has {num_entries(value)}{counted}; there is no item {key!r}."
        return MissingEntry(why, place=where)
    return ConfigError(f"{where} is {describe(value)}, so there is nothing at {path}.")


def _no_such_name(root: Any, part: fdl.Buildable, key: fiddle.Key, path: str) -> ConfigError:
    names, elsewhere = [str(name) for name in fiddle.all_arguments(part)], _places_by_name(root)
    near = nearest(str(key), {*names, *elsewhere})
    if str(key) in near:
        remedy = f"It exists at {listed(elsewhere[str(key)], most=3)}."
    elif near and not set(near) & set(names):
        remedy = f"Did you mean {' or '.join(elsewhere[name][0] for name in near)}?"
    else:
        remedy = suggest(str(key), names)
    where = f"{path} ({title(part)})" if path else title(part)
    return ConfigError(f"{where} has no parameter {key!r}. {remedy}")


def _places_by_name(root: Any) -> dict[str, list[str]]:
    """Return the paths of all parameters of a graph by their names, and its tags as selectors."""
    places: dict[str, list[str]] = {}
    for node in parts(root):
        for key in fiddle.all_arguments(node.value):
            places.setdefault(str(key), []).append(join(node.path, step_to(key)))
        for tags in fiddle.nonempty_tags(node.value).values():
            for tag in tags:
                places.setdefault(tag.__name__, [f"@{tag.__name__}"])
    return places

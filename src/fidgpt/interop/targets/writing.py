"""Graphs as YAML that Hydra can instantiate: `_target_` for what a part calls."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph import ConfigError, Node, bind, nodes
from fidgpt.graph.errors import raise_all
from fidgpt.graph.fiddle import Key, argument_tags, parameters_of, set_arguments
from fidgpt.graph.hints import hint_of
from fidgpt.graph.walk import children, is_node, join, step_to
from fidgpt.graph.yaml import write_yaml
from fidgpt.interop.targets.reading import inside, is_made_anew, require_readable, written_value
from fidgpt.interop.targets.references import dotted_name
from fidgpt.interop.targets.tree import is_reserved

_FACTORIES = (fdl.Partial, fdl.ArgFactory)


def write_targets(root: Any) -> str:
    """A graph as YAML with a `_target_` for each part, which `read_targets` reads back.

    `_partial_: true` stands for `fdl.Partial` and `fdl.ArgFactory`. A part that several places
    hold is written once, with an anchor, and built once by `read_targets`; Hydra builds one for
    each alias, which unties tied weights, so comments at the top of the file name those parts, and
    those that Hydra would hand over uncalled. Such a file has no tags: quantities are written out
    where they are heard.

    Raises:
      ConfigErrors: what would not be read back as it is; every place, in one go.
      ConfigError: the graph cannot be bound.
    """
    bound = bind(root)
    writer = _Writer(nodes(bound))
    raise_all(writer.mistakes)
    text = write_yaml(writer.written[id(bound)], anchors=writer.anchors)
    return "".join(f"# {line}\n" for line in writer.remarks()) + text


class _Writer:
    """Turns each node into plain data once, children first."""

    def __init__(self, found: list[Node]) -> None:
        self.found = found
        self.mistakes: list[str] = []
        self.written: dict[int, Any] = {}
        self.made_anew: set[int] = set()
        for node in reversed(found):
            try:
                self.written[id(node.value)] = self._node(node)
            except ConfigError as error:
                self.mistakes.append(f"{node.path or 'the top'}: {error}")
        self._require_kinds()
        self.shared = [node for node in found if len(node.parents) > 1 and _holds_parts(node)]
        names = _names(node.path for node in self.shared)
        pairs = zip(self.shared, names, strict=True)
        self.anchors = {id(self.written.get(id(node.value))): name for node, name in pairs}

    def remarks(self) -> Iterator[str]:
        """What a reader of the file should know."""
        if any(isinstance(node.value, fdl.Buildable) and _tags(node.value) for node in self.found):
            yield "Quantities that tags pass down are written out in every place that hears them."
        if self.shared:
            yield "Built once by fidgpt; Hydra would build another at each alias:"
        for node in self.shared:
            yield f"  {' = '.join(node.paths)}"
        factories = [node for node in self.found if type(node.value) is fdl.ArgFactory]
        if factories:
            yield "Made anew at each call by fidgpt; Hydra would hand over the uncalled partial:"
        for node in factories:
            yield f"  {node.path}"

    def _node(self, node: Node) -> Any:
        value = node.value
        if isinstance(value, TaggedValueCls):  # a quantity in a list is its value
            return self._value(set_arguments(value)["value"])
        if isinstance(value, fdl.Buildable):
            return self._part(node)
        if not isinstance(value, dict):
            return [self._value(item) for item in value]
        for key in value:
            if not isinstance(key, str | int) or key in ("_target_", "_component_"):
                raise ConfigError(f"the key {key!r:.60} cannot be written: use another text.")
        return {key: self._value(item) for key, item in value.items()}

    def _value(self, value: Any) -> Any:
        return self.written.get(id(value)) if is_node(value) else written_value(value)

    def _part(self, node: Node) -> dict[str, Any]:
        part = node.value
        if type(part) not in (fdl.Config, *_FACTORIES):
            raise ConfigError(f"a {type(part).__name__} cannot be written: use Config or Partial.")
        written: dict[str, Any] = {"_target_": dotted_name(fdl.get_callable(part))}
        if isinstance(part, _FACTORIES):
            written["_partial_"] = True
        arguments = set_arguments(part)
        unnamed = _unnamed(part, arguments)
        if unnamed:
            written["_args_"] = [self._value(arguments[key]) for key in unnamed]
        for key, value in arguments.items():
            self._look_at(node, key, value)
            if key not in unnamed:
                written[str(key)] = self._value(value)
        return written

    def _look_at(self, node: Node, key: Key, value: Any) -> None:
        """Notes what is wrong with an argument, and whether it is made anew at each call."""
        part = node.value
        if isinstance(key, str) and is_reserved(key):
            self.mistakes.append(
                f"{join(node.path, step_to(key))}: no argument can have this name."
            )
        hint = hint_of(part, key)
        if isinstance(part, _FACTORIES):
            found = inside(value, hint, _contents)
            factories = [(one, asked) for one, asked in found if isinstance(one, _FACTORIES)]
            self.made_anew |= {id(one) for one, asked in factories if is_made_anew(asked, one)}
            if isinstance(value, _FACTORIES):
                return
        try:
            require_readable(value, hint)
        except ConfigError as error:
            self.mistakes.append(f"{join(node.path, step_to(key))}: {error}")

    def _require_kinds(self) -> None:
        """A Partial that would be read as an ArgFactory, or the other way round, is a mistake."""
        for node in self.found:
            kind = type(node.value)
            if kind in _FACTORIES and (kind is fdl.ArgFactory) != (
                id(node.value) in self.made_anew
            ):
                other = "Partial" if kind is fdl.ArgFactory else "ArgFactory"
                self.mistakes.append(
                    f"{node.path}: this {kind.__name__} would be read back as a {other}, because "
                    "_partial_: true stands for both, and the annotation of the argument decides."
                )


def _contents(value: Any) -> Any:
    return value if isinstance(value, list | tuple | dict) else None


def _unnamed(part: fdl.Buildable, arguments: dict[Key, Any]) -> list[Key]:
    """The arguments to hand over without a name: up to the last one that has none."""
    count = 1 + max((key for key in arguments if isinstance(key, int)), default=-1)
    names: dict[int, Key] = dict(enumerate(parameters_of(part)))
    keys = [key if key in arguments else names.get(key, key) for key in range(count)]
    for key in keys:
        if key not in arguments:
            raise ConfigError(f"{key!r} has no value, and those after it have no name: set it.")
    return keys


def _holds_parts(node: Node) -> bool:
    """Whether two copies would be something else than one in two places."""
    return node.is_shared or any(is_node(child) for _, child in children(node.value))


def _tags(part: fdl.Buildable) -> bool:
    return any(argument_tags(part).values())


def _names(paths: Iterable[str]) -> Iterator[str]:
    """A name for an anchor from each path, all of them different."""
    taken: dict[str, int] = {}
    for path in paths:
        name = re.sub(r"\W+", "_", path, flags=re.ASCII).strip("_")
        taken[name] = taken.get(name, 0) + 1
        yield name if taken[name] == 1 else f"{name}-{taken[name]}"

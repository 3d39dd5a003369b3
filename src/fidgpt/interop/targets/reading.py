"""_target_ trees as configs."""

import enum
import functools
import inspect
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph import ConfigError, nodes, read_value, suggest
from fidgpt.graph.errors import at, raise_all
from fidgpt.graph.fiddle import (
    all_arguments,
    assign,
    default_of,
    parameter_of,
    raw_arguments,
    set_arguments,
)
from fidgpt.graph.hints import element_hint, fits, hint_of, is_protocol, members_of, name_of
from fidgpt.graph.paths import describe
from fidgpt.graph.values import as_asked
from fidgpt.graph.walk import join, step_to
from fidgpt.graph.yaml import read_yaml
from fidgpt.interop.targets.references import (
    dotted_name,
    escaped,
    find_constructor,
    find_target,
    refusal,
)
from fidgpt.interop.targets.tree import DEEPEST, Call, Tree, read_tree


def read_targets(text_or_path: str | pathlib.Path, *, allowed: tuple[str, ...] = ()) -> Any:
    """The graph that a YAML file of `_target_` or `_component_` calls describes.

    A call becomes a `fdl.Config`, one with `_partial_: true` a `fdl.Partial`; inside of a partial
    it becomes a `fdl.ArgFactory` where the annotation asks for what is made, not for a function
    that makes it. `_args_` are the arguments without a name. `_convert_` is heeded in that lists
    and dicts are always Python's own, and `_recursive_: false` is refused. `hydra.utils.get_class`,
    `get_method` and `get_object` give what their `path` names.

    `${a.b}` stands for the value at that path of the file. Where that is a call, both places hold
    the same part, which is built once, and so do a YAML anchor and its aliases; Hydra would build
    it anew at each place. Resolvers such as `${oc.env:HOME}` are refused.

    Args:
      text_or_path: contents of the file, or a Path to it.
      allowed: packages of the user's own whose callables the file may name, beside what fidgpt
        exports and the modules and optimizers of torch.

    Returns:
      The part that the file's top describes, or a dict or list of parts if the top is no call.

    Raises:
      ConfigErrors: every mistake, each with its path. Where a name is refused, nothing that the
        file names is imported.
      ConfigError: the file cannot be read, or is no YAML of plain data.
    """
    tree = read_tree(_content(text_or_path))
    reasons = ((call, refusal(call.name, allowed)) for call in tree.calls)
    if refused := [f"{call.place}: {why}" for call, why in reasons if why]:
        raise_all([*refused, *tree.mistakes])
    maker = _Maker(tree, allowed)
    root = maker.make()
    raise_all([*tree.mistakes, *maker.mistakes])
    nodes(root)  # a reference may lead to the part that holds it
    return root


def _content(text_or_path: str | pathlib.Path) -> Any:
    if isinstance(text_or_path, str):
        return _data(text_or_path, "the YAML file")
    try:
        text = text_or_path.expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # a ValueError for what is not UTF-8, or no path
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{text_or_path} cannot be read: {reason}.") from None
    return _data(text, str(text_or_path))


def _data(text: str, source: str) -> Any:
    with at(source):
        return read_yaml(text, schema="omegaconf")


class _Maker:
    """Makes each container of a tree once: first empty, then filled, so that depth is no limit."""

    def __init__(self, tree: Tree, allowed: tuple[str, ...]) -> None:
        self.tree = tree
        self.allowed = allowed
        self.mistakes: list[str] = []
        self.made: dict[int, Any] = {}

    def make(self) -> Any:
        for call in self.tree.calls:
            self.made[id(call.written)] = self._empty_part(call)
        self.made |= {id(written): type(written)() for written, _ in self.tree.containers}
        self._choose_factories()
        for written, container in self.tree.containers:
            self._fill(self.made[id(written)], container)
        for call in self.tree.calls:
            self._fill_part(call)
        return self._made(self.tree.root)

    def _made(self, value: Any) -> Any:
        return self.made.get(id(value)) if isinstance(value, dict | list) else value

    def _empty_part(self, call: Call) -> Any:
        """A part without its arguments; None, and a mistake, where there is nothing to call."""
        try:
            if call.is_lookup:
                return find_target(call.name, allowed=self.allowed)
            function = find_constructor(call.name, allowed=self.allowed)
            return _part(fdl.Partial if call.is_partial else fdl.Config, function)
        except ConfigError as error:
            self.mistakes.append(f"{call.place}: {error}")
        except (TypeError, ValueError) as error:  # what has no signature
            self.mistakes.append(f"{call.place}: {call.name} cannot be configured: {error}.")
        return None

    def _choose_factories(self) -> None:
        """Inside of a partial, what is to be made anew at each call is no function to hand over."""
        partials = {id(call.written): call for call in self.tree.calls if call.is_partial}
        held = {id(written): container for written, container in self.tree.containers}
        for call in partials.values():
            for _, key, value in self._known_arguments(call):
                hint = hint_of(self.made[id(call.written)], key)
                for one, asked in inside(value, hint, lambda it: held.get(id(it))):
                    part = self.made[id(one)] if id(one) in partials else None
                    if isinstance(part, fdl.Partial) and is_made_anew(asked, part):
                        self.made[id(one)] = fdl.ArgFactory(fdl.get_callable(part))

    def _fill(self, shell: Any, container: Any) -> None:
        if isinstance(container, dict):
            shell.update((key, self._made(value)) for key, value in container.items())
        else:
            shell += [self._made(value) for value in container]

    def _known_arguments(self, call: Call) -> Iterator[tuple[str, str | int, Any]]:
        """The arguments of a call that its signature takes: path, key, and what is written."""
        part = self.made[id(call.written)]
        if not isinstance(part, fdl.Buildable):
            return
        for key, value in call.arguments:
            if parameter_of(part, key) is not None:
                yield join(call.path, step_to(key)), key, value

    def _fill_part(self, call: Call) -> None:
        part = self.made[id(call.written)]
        if not isinstance(part, fdl.Buildable):
            return
        names = [str(key) for key in all_arguments(part)]
        usual = {*raw_arguments(part)}  # of a partial
        for key, _ in call.arguments:
            if parameter_of(part, key) is None:
                self.mistakes.append(
                    f"{call.place}: {call.name} has no parameter {key!r:.60}. "
                    f"{suggest(str(key), names)}"
                )
        for path, key, value in self._known_arguments(call):
            try:
                if isinstance(key, str) and key in raw_arguments(part).keys() - usual:
                    raise ConfigError("it is said twice, by name and in _args_.")
                assign(part, key, _fitting(part, key, self._made(value)))
            except (ConfigError, AttributeError, IndexError, TypeError) as error:
                self.mistakes.append(f"{path}: {error}")


def _part(kind: type[fdl.Buildable], function: Any) -> fdl.Buildable:
    """A part for what a name stands for; where that is a partial itself, for what it calls."""
    if isinstance(function, functools.partial):
        return kind(function.func, *function.args, **function.keywords)
    return kind(function)


def _fitting(part: fdl.Buildable, key: str | int, value: Any) -> Any:
    """A value for a parameter: by its annotation, or None where that is the default anyway."""
    if value is not None:
        return fitting(value, hint_of(part, key))
    default = default_of(part, key)
    try:
        return None if default is None else fitting(None, hint_of(part, key))
    except ConfigError as error:
        remedy = "" if default is fdl.NO_VALUE else f" Leave the line out for {default!r:.60}."
        raise ConfigError(f"{error}{remedy}") from None


def inside(value: Any, hint: Any, contents: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    """What an argument holds, itself or in lists and dicts, each with the annotation of its place.

    Args:
      value: the argument.
      hint: its annotation.
      contents: the items of a list or dict; None of what is neither.
    """
    todo = [(value, hint)]
    while todo:
        value, hint = todo.pop()
        held = contents(value)
        if held is None:
            yield value, hint
            continue
        items = held.items() if isinstance(held, dict) else enumerate(held)
        todo += [(item, element_hint(hint, key)) for key, item in items]


def is_made_anew(hint: Any, part: fdl.Buildable) -> bool:
    """Whether a partial `part` that another one holds is to be called each time that one is.

    So it is where the annotation asks for what the part makes, and refuses a function; or is a
    Protocol, which instances of a class answer: one that can be called is no factory of them.
    """
    function = fdl.get_callable(part)
    is_answer = isinstance(function, type) and any(map(is_protocol, members_of(hint)))
    if not is_answer and fits(fdl.Partial(function), hint):
        return False
    return fits(fdl.ArgFactory(function), hint)


def fitting(value: Any, hint: Any) -> Any:
    """A value of a file as an annotation asks for it: a tuple for a list, an enum for its name.

    Raises:
      ConfigError: it does not fit.
    """
    value = as_asked(value, hint)
    if fits(value, hint):
        return value
    if isinstance(value, str):
        return read_value(value, hint)
    raise ConfigError(f"{name_of(hint)} is asked, not {describe(value)}.")


def written_value(value: Any) -> Any:
    """A value that is no part, list or dict, as plain data.

    Raises:
      ConfigError: a file has no form for it.
    """
    said = _said(value)
    if said is None or isinstance(said, bool | int | float):
        return said
    if not isinstance(said, str):
        kind = "class" if inspect.isclass(said) else "object"
        return {"_target_": f"hydra.utils.get_{kind}", "path": dotted_name(said)}
    if said == "???":
        raise ConfigError("the text ??? cannot be written: it would say that a value is missing.")
    return escaped(said)


def require_readable(value: Any, hint: Any) -> None:
    """Says why an argument would not be read back as it is.

    Raises:
      ConfigError: its annotation does not bring it back, or it has no form in a file.
    """
    read = fitting(_said_of_all(value, 0), hint)
    if not _is_same(read, value):
        raise ConfigError(
            f"{describe(value)} would be read back as {describe(read)}: annotate the argument, or "
            "use what YAML has, such as a list for a tuple."
        )


def _said(value: Any) -> Any:
    """What a file says for a value: a word for an enum or a path, the thing itself for others."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value)
    if value is None or type(value) in (bool, int, float, str) or callable(value):
        return value
    raise ConfigError(
        f"{describe(value)} cannot be written: make it a fdl.Config of its constructor, or use "
        "plain values."
    )


def _said_of_all(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise ConfigError(f"lists and dicts lie more than {DEEPEST} deep in each other.")
    if isinstance(value, TaggedValueCls):
        value = set_arguments(value)["value"]
    if isinstance(value, fdl.Buildable):
        return value
    if isinstance(value, dict):
        return {key: _said_of_all(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_said_of_all(item, depth + 1) for item in value]
    return _said(value)


def _is_same(read: Any, value: Any) -> bool:
    """Whether what is read is of the same kind throughout; 1.0 is not 1, nor a list a tuple."""
    if isinstance(value, TaggedValueCls):
        value = set_arguments(value)["value"]
    if type(read) is not type(value):
        return False
    if isinstance(value, dict):
        return [*read] == [*value] and all(_is_same(read[key], value[key]) for key in value)
    if isinstance(value, list | tuple):
        return len(read) == len(value) and all(map(_is_same, read, value))
    return read is value or (not isinstance(value, fdl.Buildable) and repr(read) == repr(value))

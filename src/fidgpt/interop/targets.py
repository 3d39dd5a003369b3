"""Conversion between graphs and YAML with `_target_` calls, as in Hydra and torchtune."""

import contextlib
import enum
import functools
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph import ConfigError, Node, bind, diff, fiddle, hints, nodes, suggest, walk
from fidgpt.graph.cloning import clone
from fidgpt.graph.codec import PACKAGES, SINGLE, TORCH_MODULES, find_name, is_tag, name_of
from fidgpt.graph.errors import at, raise_all
from fidgpt.graph.paths import describe
from fidgpt.graph.provenance import written_in
from fidgpt.graph.values import as_asked, read_value
from fidgpt.graph.yaml import Foreign, read_yaml, write_yaml
from fidgpt.interop.hydra import Composed, read_composed

_NAMES = ("_target_", "_component_")
_SETTINGS: dict[str, tuple[Any, str]] = {
    "_args_": (list, "a list of positional arguments"),
    "_partial_": (bool, "true or false"),
    "_convert_": (Literal["none", "partial", "object", "all"], "none, partial, object or all"),
    "_recursive_": (Literal[True], "true; set _partial_: true on nodes to instantiate later"),
}
_LOOKUPS = tuple(f"hydra.utils.get_{kind}" for kind in ("class", "method", "object"))
_MAX_ITEMS = 1_000_000  # in lists and dicts, where aliases count each time
_FACTORIES = (fdl.Partial, fdl.ArgFactory)
_MARK = re.compile(r"(\\*)\$\{")
_REFERENCE = re.compile(r"(\\*)\$\{([^{}]*)(\}?)")
_INNER = re.compile(r"(\\*)(\$\{[^{}]*)(\$\{[^{}]*\})")  # a reference in another one
_MAX_LENGTH = 10_000  # characters; nested interpolations could grow exponentially
_OWN = (
    *(f"fidgpt.{name}" for name in PACKAGES),
    *(f"fidgpt.{one}".replace(":", ".") for one in SINGLE),
)


def read_targets(
    text_or_path: str | pathlib.Path,
    *,
    select: Mapping[str, str | None] | None = None,
    allowed: tuple[str, ...] = (),
) -> Any:
    """Return the graph that a YAML file of `_target_` or `_component_` calls describes.

    A call becomes a `fdl.Config`, one with `_partial_: true` a `fdl.Partial`; inside a partial it
    becomes a `fdl.ArgFactory` if the annotation is that of the result rather than of a function
    that returns it. `_args_` are positional arguments. `_convert_` is ignored, as lists and dicts
    are always plain Python, and `_recursive_: false` is rejected. `hydra.utils.get_class`,
    `get_method` and `get_object` return the object that their `path` names.

    `${a.b}` is replaced by the value at that path of the file. If that is a call, both paths share
    one node, which is built once, and so do a YAML anchor and its aliases; Hydra would build one
    for each. The resolvers `oc.env`, `oc.select` and `oc.decode` mean what they mean to OmegaConf;
    others are rejected. A value `???` is an error. Files that the defaults list of a file names are
    merged into it; see `read_composed`.

    Args:
      text_or_path: contents of the file, or a Path to it, which a defaults list needs.
      select: the file for each of some groups of the defaults list: `{"model": "wide"}`.
      allowed: additional packages whose callables the file may name, besides those exported by
        fidgpt and torch's modules and optimizers.

    Returns:
      The node of the file's top level, or a dict or list of nodes if that is not a call.

    Raises:
      ConfigErrors: all errors, each with its path. If a name is rejected, nothing that the file
        names is imported.
      ConfigError: the file cannot be read, or is not YAML of plain data.
    """
    root, lines = _read_file(text_or_path, select)
    if not isinstance(root, dict | list):
        raise ConfigError(f"the file holds {root!r:.60}, not a mapping with a _target_.")
    if isinstance(root, dict) and "defaults" in root and not _is_call(root):
        raise ConfigError(
            "defaults: names other files, which a text cannot find; pass the Path of the file."
        )
    try:
        reader = _Reader(root, lines, allowed)
        raise_all(reader.errors if reader.has_refused else [])
        made = reader.value(reader.root, "")
    except RecursionError:
        raise ConfigError("the file is nested too deeply, or contains itself.") from None
    raise_all(reader.errors)
    nodes(made)  # raises if a reference leads to a node that contains it
    return made


def _read_file(
    text_or_path: str | pathlib.Path, select: Mapping[str, str | None] | None
) -> Composed:
    if not isinstance(text_or_path, str):
        return read_composed(pathlib.Path(text_or_path), select)
    with at("the YAML file"):
        return Composed(read_yaml(text_or_path, schema="omegaconf"), {})


class _References:
    """Resolves the references in a tree of plain data.

    A string that consists of one `${path}` becomes the object at that path, so that both share one
    node. In a longer string, a reference is replaced by the text of the value.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._open: list[tuple[int, str]] = []
        self._holders: dict[int, Any] = {}
        todo = [root]
        while todo:
            holder = todo.pop()
            for item in holder.values() if isinstance(holder, dict) else holder:
                if isinstance(item, dict | list) and id(item) not in self._holders:
                    self._holders[id(item)] = holder
                    todo.append(item)

    def value(self, holder: Any, value: Any) -> Any:
        """Return the resolved form of a value in the container `holder`.

        Raises:
          ConfigError: a reference is to a missing path or to itself, or uses a resolver.
        """
        if not isinstance(value, str) or "${" not in value:
            return value
        while (inner := _INNER.search(value)) and not len(inner[1]) % 2:
            found = _REFERENCE.sub(lambda match: self._text(holder, match), inner[3])
            value = f"{value[: inner.start(3)]}{found}{value[inner.end(3) :]}"
            if len(value) > _MAX_LENGTH:
                break
        whole = _REFERENCE.fullmatch(value)
        if whole and not whole[1]:
            return self._target(holder, whole)
        text = _REFERENCE.sub(lambda match: self._text(holder, match), value)
        if len(text) > _MAX_LENGTH:
            raise ConfigError(f"{value!r:.60} expands to more than {_MAX_LENGTH:,} characters.")
        return text

    def _text(self, holder: Any, match: re.Match[str]) -> str:
        backslashes = "\\" * (len(match[1]) // 2)
        if len(match[1]) % 2:
            return backslashes + match[0].lstrip("\\")
        found = self._target(holder, match)
        if isinstance(found, dict | list | Foreign):
            raise ConfigError(f"{match.string!r:.80} puts a {type(found).__name__} into a string.")
        return f"{backslashes}{found}"

    def _target(self, holder: Any, match: re.Match[str]) -> Any:
        path = match[2].strip()
        if ":" in path:
            return self._resolved_by(holder, match, *path.split(":", 1))
        if not match[3] or not _steps(path):
            raise ConfigError(
                f"{match.string!r:.80} is not a reference to a path; write ${{a.b}}, or \\${{ for "
                "a literal ${{."
            )
        if (id(holder), path) in self._open:
            raise ConfigError(f"{match.string!r:.80} refers to itself.")
        self._open.append((id(holder), path))
        try:
            return self._followed(holder, path)
        finally:
            self._open.pop()

    def _followed(self, holder: Any, path: str) -> Any:
        """Return the value at a path.

        Raises:
          ConfigError: there is none.
        """
        value = self._start(holder, path)
        for step in _steps(path):
            value = self.value(value, _entry(value, step))
        return value

    def _resolved_by(self, holder: Any, match: re.Match[str], name: str, text: str) -> Any:
        """Return what one of OmegaConf's own resolvers returns.

        Raises:
          ConfigError: the resolver is another one, or its argument has no value.
        """
        argument, comma, default = (one.strip().strip("'\"") for one in text.partition(","))
        if name == "oc.decode":
            return read_yaml(text.strip().strip("'\""), schema="omegaconf")
        if name == "oc.env" and (argument in os.environ or comma):
            found = os.environ.get(argument, default)
            return None if found == "null" and argument not in os.environ else found
        if name == "oc.env":
            raise ConfigError(
                f"{match.string!r:.80}: the environment has no variable {argument!r:.40}; set it."
            )
        if name == "oc.select":
            try:
                return self._followed(holder, argument)
            except ConfigError:
                return read_yaml(default, schema="omegaconf") if comma else None
        raise ConfigError(
            f"{match.string!r:.80} uses the resolver {name!r:.40}, which would run code; write its "
            "value instead."
        )

    def _start(self, holder: Any, path: str) -> Any:
        dots = len(path) - len(path.lstrip("."))
        for _ in range(dots - 1):
            if holder is self._root:
                raise ConfigError(f"${{{path:.60}}} leads above the top level of the file.")
            holder = self._holders[id(holder)]
        return holder if dots else self._root


def _steps(path: str) -> list[str]:
    return [step.strip("'\"") for step in re.findall(r"[^.\[\]]+", path)]


def _entry(value: Any, step: str) -> Any:
    number = int(step) if step.isdecimal() and len(step) < 10 else None
    if isinstance(value, list):
        if number is not None and number < len(value):
            return value[number]
        raise ConfigError(f"there is no {step!r:.40} in a list of {len(value)}.")
    if not isinstance(value, dict):
        raise ConfigError(f"{value!r:.40} is a plain value, and has no {step!r:.40}.")
    for key in (step, number):
        if key in value:
            return value[key]
    raise ConfigError(f"there is no {step!r:.40}. {suggest(step, map(str, value))}")


class _Reader:
    """Converts each container of a file once: calls, lists and dicts."""

    def __init__(
        self, root: Any, lines: Mapping[str, tuple[str, int]], allowed: tuple[str, ...]
    ) -> None:
        """Resolve the references of a file, and check the names and settings of its calls."""
        self.errors: list[str] = []
        self.has_refused = False
        self._lines = lines
        self._allowed = allowed
        self._made: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}
        self._links = _References(root)
        self._resolved: dict[int, Any] = {}
        self.root = self._resolve(root, "")

    def _resolve(self, written: Any, path: str) -> Any:
        """Return a copy of a value with references resolved."""
        if not isinstance(written, dict | list):
            return written
        if id(written) in self._resolved:
            return self._resolved[id(written)]
        made: Any = type(written)()
        self._resolved[id(written)] = made
        content: dict[Any, Any] = {}
        for key, value in _entries(written):
            place = walk.join(path, walk.step_to(key))
            try:
                content[key] = self._resolve(_plain(self._links.value(written, value)), place)
            except ConfigError as error:
                self.errors.append(f"{place}: {error}")
        made.update(content) if isinstance(made, dict) else made.extend(content.values())
        if _is_call(made):
            self._check_call(path or "the top", made)
        return made

    def _check_call(self, place: str, written: dict[Any, Any]) -> None:
        self.errors += [f"{place}: {message}" for message in _call_errors(written)]
        name = _name_in(written)
        if isinstance(name, str) and (message := _refusal(name, self._allowed)):
            self.has_refused = True
            self.errors.append(f"{place}: {message}")

    def value(self, written: Any, path: str, hint: Any = Any, *, in_partial: bool = False) -> Any:
        """Return a value of the file as part of the graph.

        Args:
          written: the value, with references resolved.
          path: path of its first occurrence.
          hint: annotation of the parameter that receives it.
          in_partial: whether it is inside an argument of a partial.
        """
        if not isinstance(written, dict | list):
            return written
        if id(written) in self._made:
            return self._made[id(written)]
        if isinstance(written, dict) and _is_call(written):
            return self._call(written, path, hint, in_partial)
        items = [
            self.value(
                item,
                walk.join(path, walk.step_to(key)),
                hints.element_hint(hint, key),
                in_partial=in_partial,
            )
            for key, item in _entries(written)
        ]
        size = sum(self._sizes.get(id(item), 1) for item in items)
        if size > _MAX_ITEMS:  # aliases make small files expand
            raise ConfigError(f"the lists and dicts have more than {_MAX_ITEMS:,} items in total.")
        made = dict(zip(written, items, strict=True)) if isinstance(written, dict) else items
        self._made[id(written)], self._sizes[id(made)] = made, size
        return made

    def _call(self, written: dict[str, Any], path: str, hint: Any, in_partial: bool) -> Any:
        """Return a node; None, after recording an error, if there is nothing to call."""
        place, name = path or "the top", _name_in(written)
        part = self._made[id(written)] = None
        is_partial = written.get("_partial_") is True
        if not isinstance(name, str):  # recorded as an error already
            return part
        try:
            function = _find_target(name, allowed=self._allowed)
            if _is_lookup(written):
                part = function
            elif not callable(function) or is_tag(function):
                raise ConfigError(f"{name!r:.80} is not a constructor.")
            else:
                part = _part(fdl.Partial if is_partial else fdl.Config, function)
                if is_partial and in_partial and _is_factory_for(hint, part):
                    part = _part(fdl.ArgFactory, function)
        except ConfigError as error:
            self.errors.append(f"{place}: {error}")
        except (TypeError, ValueError) as error:  # it has no signature
            self.errors.append(f"{place}: {name} cannot be configured: {error}.")
        self._made[id(written)] = part
        if isinstance(part, fdl.Buildable) and not _is_lookup(written):
            self._set_arguments(part, written, path)
        return part

    def _set_arguments(self, part: fdl.Buildable, written: dict[str, Any], path: str) -> None:
        presets = {*fiddle.raw_arguments(part)}  # of a functools.partial
        args = written.get("_args_")
        arguments = [*enumerate(args if isinstance(args, list) else ())]
        arguments += [(key, one) for key, one in written.items() if not _is_reserved(str(key))]
        for key, value in arguments:
            if fiddle.parameter_of(part, key) is None:
                known = suggest(str(key), [str(one) for one in fiddle.all_arguments(part)])
                name = _name_in(written)
                place = path or "the top"
                self.errors.append(f"{place}: {name} has no parameter {key!r:.60}. {known}")
                continue
            place = walk.join(path, walk.step_to(key))
            try:
                if key in fiddle.raw_arguments(part).keys() - presets:
                    raise ConfigError("is set twice, by name and in _args_.")
                in_partial = isinstance(part, _FACTORIES)
                made = self.value(value, place, hints.hint_of(part, key), in_partial=in_partial)
                file, line = self._lines.get(place, ("", 0))
                with written_in(file, line) if line else contextlib.nullcontext():
                    fiddle.assign(part, key, _fitting(part, key, made))
            except (ConfigError, AttributeError, IndexError, TypeError) as error:
                self.errors.append(f"{place}: {error}")


def _entries(container: Any) -> list[tuple[Any, Any]]:
    return [*(container.items() if isinstance(container, dict) else enumerate(container))]


def _is_call(value: Any) -> bool:
    return isinstance(value, dict) and any(name in value for name in _NAMES)


def _is_lookup(written: dict[str, Any]) -> bool:
    return written.get("_target_", written.get("_component_")) in _LOOKUPS


def _name_in(written: dict[str, Any]) -> Any:
    """Return the dotted name that a mapping calls or looks up."""
    name = written.get("_target_", written.get("_component_"))
    return written.get("path") if name in _LOOKUPS else name


def _is_reserved(key: str) -> bool:
    """Return whether a key is a setting of the call rather than an argument."""
    return len(key) > 2 and key.startswith("_") and key.endswith("_")


def _plain(value: Any) -> Any:
    if isinstance(value, Foreign):
        raise ConfigError(f"the tag {value.tag!r:.40} is refused: a config is plain data.")
    if value == "???":
        raise ConfigError("??? marks a missing value; set it.")
    return value


def _call_errors(written: dict[Any, Any]) -> Iterator[str]:
    """Yield the errors in the names and settings of a call."""
    names = [name for name in _NAMES if name in written]
    if len(names) > 1:
        yield "has both _target_ and _component_; keep one of them."
    for key, value in written.items():
        if not isinstance(key, str):
            yield f"the name of an argument must be a string, not {key!r:.60}."
        elif key in _NAMES and not isinstance(value, str):
            yield f"{key} is {value!r:.60}, but must be a dotted name, such as torch.nn.Linear."
        elif key in _NAMES and value in _LOOKUPS:
            if {*written} != {key, "path"} or not isinstance(written["path"], str):
                yield f"{value} takes only the argument path, a dotted name."
        elif key in _SETTINGS and not hints.fits(value, _SETTINGS[key][0]):
            yield f"{key} must be {_SETTINGS[key][1]}; it is {value!r:.60}."
        elif _is_reserved(key) and key not in (*_NAMES, *_SETTINGS):
            yield f"{key:.60} is unknown. {suggest(key, (*_NAMES, *_SETTINGS))}"


def _part(kind: type[fdl.Buildable], function: Any) -> fdl.Buildable:
    """Return a node for a callable; for a functools.partial, one for its function."""
    if isinstance(function, functools.partial):
        return kind(function.func, *function.args, **function.keywords)
    return kind(function)


def _is_factory_for(hint: Any, part: fdl.Buildable) -> bool:
    """Return whether a partial inside another one is an `ArgFactory`.

    It is if the annotation accepts the result of the node and rejects a function, or if it is a
    Protocol that instances of the class satisfy, as callables that are instances are not factories.
    """
    function = fdl.get_callable(part)
    is_answer = isinstance(function, type) and any(map(hints.is_protocol, hints.members_of(hint)))
    if not is_answer and hints.fits(fdl.Partial(function), hint):
        return False
    return hints.fits(fdl.ArgFactory(function), hint)


def _fitting(part: fdl.Buildable, key: str | int, value: Any) -> Any:
    """Return a value that fits a parameter's annotation; a default of None always does.

    So does any None for what is not fidgpt's or torch's: many annotate `str` what may be None.
    """
    default = fiddle.default_of(part, key)
    is_foreign = not _package(fdl.get_callable(part).__module__, ("fidgpt", "torch"))
    if value is None and (default is None or is_foreign):
        return None
    hint = hints.hint_of(part, key)
    value = as_asked(value, hint)
    if hints.fits(value, hint):
        return value
    if isinstance(value, str):
        return read_value(value, hint)
    remedy = ""
    if value is None and default is not fdl.NO_VALUE:
        remedy = f" Remove the line for {default!r:.60}."
    raise ConfigError(f"must be {hints.name_of(hint)}, not {describe(value)}.{remedy}")


def _refusal(name: str, allowed: tuple[str, ...]) -> str | None:
    """Return why a name is not allowed, without importing anything; None if it is."""
    parts = name.partition(":")[0].split(".")
    if not all(part.isidentifier() for part in parts) or (len(parts) < 2 and ":" not in name):
        return f"{name!r:.80} is not a dotted name, such as torch.nn.Linear."
    if _package(name.replace(":", "."), (*_OWN, *TORCH_MODULES, *allowed)):
        return None
    return (
        f"{name!r:.80} is refused: a config file may name what fidgpt exports, modules of "
        "torch.nn, optimizers of torch.optim, and packages that you --allow (in Python, allowed=)."
    )


def _find_target(name: str, *, allowed: tuple[str, ...] = ()) -> Any:
    """Return the class or function of a dotted name, or of `module:qualname`.

    Raises:
      ConfigError: the name is not allowed, or does not exist.
    """
    if message := _refusal(name, allowed):
        raise ConfigError(message)
    if ":" not in name:
        package = _package(name, allowed)
        name = _split_module(name, package) if package else ":".join(name.rsplit(".", 1))
    module, _, qualname = name.partition(":")
    if module in TORCH_MODULES:
        classes = dict(inspect.getmembers(importlib.import_module(module), inspect.isclass))
        if qualname not in classes:
            raise ConfigError(
                f"{module} has no class {qualname!r:.40}. {suggest(qualname, classes)}"
            )
        name = name_of(classes[qualname])
    return find_name(name, allowed=allowed)


def _dotted_name(thing: Any) -> str:
    """Return the shortest dotted name by which a file can name a class or function.

    Raises:
      ConfigError: it cannot be named, because it was defined in a function or a notebook.
    """
    module, _, qualname = name_of(thing).partition(":")
    for package in TORCH_MODULES if module.startswith("torch.") else ():
        if getattr(importlib.import_module(package), qualname, None) is thing:
            return f"{package}.{qualname}"
    return f"{module}.{qualname}"


def _package(name: str, packages: tuple[str, ...]) -> str | None:
    """Return the first package that contains a name; None if none does."""
    inside = (one for one in packages if name == one or name.startswith(f"{one}."))
    return next(inside, None)


def _split_module(name: str, package: str) -> str:
    """Insert a colon after the module of a name; this imports its parent packages."""
    module, rest = package, name.removeprefix(package).strip(".").split(".")
    try:
        while len(rest) > 1 and importlib.util.find_spec(f"{module}.{rest[0]}"):
            module = f"{module}.{rest.pop(0)}"
    except ModuleNotFoundError:
        pass  # the module is not a package
    except Exception as error:  # importing a user's package may raise anything
        raise ConfigError(f"{module} cannot be imported for {name!r:.80}: {error}") from error
    return f"{module}:{'.'.join(rest)}"


def write_targets(root: Any) -> str:
    """Return a graph as YAML with a `_target_` for each node, which `read_targets` reads back.

    `fdl.Partial` and `fdl.ArgFactory` become `_partial_: true`. A shared node is written once, with
    an anchor, and `read_targets` builds it once; Hydra builds one for each alias, which unties tied
    weights. Comments at the top of the file list such nodes, and those that Hydra would pass
    without calling them. The file has no tags: inherited quantities are written out.

    Raises:
      ConfigErrors: all values that would not be read back unchanged.
      ConfigError: the graph cannot be bound.
    """
    bound = clone(bind(root))
    has_tags = _drop_tags(bound)
    found = nodes(bound)
    written: dict[int, Any] = {}
    errors: list[str] = []
    modules: set[str] = set()
    for node in reversed(found):
        try:
            written[id(node.value)] = _written_node(node.value, written, modules)
        except ConfigError as error:
            errors.append(f"{node.path or 'the top'}: {error}")
    raise_all(errors)
    shared = [node for node in found if len(node.parents) > 1 and _holds_parts(node)]
    anchors = {id(written[id(node.value)]): _anchor(node, i) for i, node in enumerate(shared)}
    text = write_yaml(written[id(bound)], anchors=anchors)
    with at("the YAML would not be read back"):
        again = read_targets(text, allowed=tuple(one for one in modules if _refusal(one, ())))
    raise_all(
        [
            f"{one.path or 'the top'}: would change when read back ({one.detail}); annotate the "
            "argument, or use a type of YAML, such as a list for a tuple."
            for one in diff(bound, again)
        ]
    )
    return "".join(f"# {line}\n" for line in _remarks(found, shared, has_tags)) + text


def _drop_tags(bound: Any) -> bool:
    """Remove all tags, keeping the values; return whether there were any."""
    has_tags = False
    for node in nodes(bound):
        value = node.value
        if isinstance(value, fdl.Buildable):
            has_tags |= any(fiddle.argument_tags(value).values())
            fiddle.argument_tags(value).clear()
        elif isinstance(value, list | dict):
            for key, item in _entries(value):
                if isinstance(item, TaggedValueCls):
                    value[key] = fiddle.set_arguments(item)["value"]
    return has_tags


def _remarks(found: list[Node], shared: list[Node], has_tags: bool) -> Iterator[str]:
    """Yield the comments at the top of the file."""
    if has_tags:
        yield "Quantities that are inherited by tags are written out wherever they are inherited."
    for title, rows in (
        (
            "Built once by fidgpt; Hydra would build another at each alias:",
            [" = ".join(node.paths) for node in shared],
        ),
        (
            "Created on each call by fidgpt; Hydra would pass the uncalled partial:",
            [node.path for node in found if type(node.value) is fdl.ArgFactory],
        ),
    ):
        yield from [title, *(f"  {row}" for row in rows)] if rows else []


def _written_node(node: Any, written: dict[int, Any], modules: set[str]) -> Any:
    """Return a node as plain data; its children are in `written`."""

    def value_of(value: Any) -> Any:
        return written.get(id(value)) if walk.is_node(value) else _written_value(value, modules)

    if isinstance(node, list | tuple):
        return [value_of(item) for item in node]
    if isinstance(node, dict):
        for key in node:
            if not isinstance(key, str | int) or key in _NAMES:
                raise ConfigError(f"the key {key!r:.60} cannot be written; use another.")
        return {key: value_of(item) for key, item in node.items()}
    if fiddle.kind_of(node) not in (fdl.Config, *_FACTORIES):
        raise ConfigError(f"a {type(node).__name__} cannot be written; use Config or Partial.")
    call: dict[str, Any] = {"_target_": _name_of(fdl.get_callable(node), modules)}
    if isinstance(node, _FACTORIES):
        call["_partial_"] = True
    arguments = fiddle.set_arguments(node)
    count = 1 + max((key for key in arguments if isinstance(key, int)), default=-1)
    names: dict[int, str | int] = dict(enumerate(fiddle.parameters_of(node)))
    unnamed = [key if key in arguments else names.get(key, key) for key in range(count)]
    for key in unnamed:
        if key not in arguments:
            raise ConfigError(f"{key!r} is unset, but positional arguments follow it; set it.")
    if unnamed:
        call["_args_"] = [value_of(arguments[key]) for key in unnamed]
    for key, value in arguments.items():
        if isinstance(key, str) and _is_reserved(key):
            raise ConfigError(f"an argument named {key} cannot be written.")
        if key not in unnamed:
            call[str(key)] = value_of(value)
    return call


def _name_of(thing: Any, modules: set[str]) -> str:
    name = _dotted_name(thing)
    modules.add(name.removesuffix(f".{thing.__qualname__}"))
    return name


def _written_value(value: Any, modules: set[str]) -> Any:
    """Return a value that is not a node as plain data; reading it back is checked later."""
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if type(value) is str or isinstance(value, pathlib.PurePath):
        return _MARK.sub(lambda match: f"{match[1] * 2}\\${{", str(value))
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value)
    if not callable(value):
        raise ConfigError(
            f"{describe(value)} cannot be written; use a fdl.Config of its constructor, or plain "
            "values."
        )
    kind = "class" if inspect.isclass(value) else "object"
    return {"_target_": f"hydra.utils.get_{kind}", "path": _name_of(value, modules)}


def _holds_parts(node: Node) -> bool:
    """Return whether two copies would differ from a shared node."""
    return node.is_shared or any(walk.is_node(child) for _, child in walk.children(node.value))


def _anchor(node: Node, number: int) -> str:
    """Return a name for an anchor, made unique by the number."""
    name = re.sub(r"\W+", "_", node.path, flags=re.ASCII).strip("_")
    return f"{name}-{number}" if number else name

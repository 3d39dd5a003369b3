"""Conversion between graphs and YAML with `_target_` calls, as in Hydra and torchtune."""

import contextlib
import enum
import functools
import importlib
import importlib.util
import inspect
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.errors import at, raise_all
from fidgpt.graph import ConfigError, Node, bind, diff, fiddle, hints, nodes, suggest, walk
from fidgpt.graph.codec import PACKAGES, SINGLE, TORCH_MODULES, find_name, is_tag, name_of
from fidgpt.graph.expressions import as_asked, read_value
from fidgpt.graph.paths import describe
from fidgpt.graph.walk import clone
from fidgpt.graph.yaml import write_yaml
from fidgpt.interop.hydra import read_config

_NAMES = ("_target_", "_component_")
_SETTINGS = ("_args_", "_partial_", "_convert_", "_recursive_")
_LOOKUPS = tuple(f"hydra.utils.get_{kind}" for kind in ("class", "method", "object"))
_FACTORIES = (fdl.Partial, fdl.ArgFactory)
_MARK = re.compile(r"(\\*)\$\{")
_OWN = (
    *(f"fidgpt.{name}" for name in PACKAGES),
    *(f"fidgpt.{name}".replace(":", ".") for name in SINGLE),
)


def read_targets(
    text_or_path: str | pathlib.Path,
    *,
    select: Mapping[str, str | None] | None = None,
    allowed: tuple[str, ...] = (),
) -> Any:
    """Return the graph that a YAML file of `_target_` or `_component_` calls describes.

    A call becomes a `fdl.Config`, one with `_partial_: true` a `fdl.Partial`; inside a partial it
    becomes a `fdl.ArgFactory` if the parameter takes the result rather than a function
    that returns it. `_args_` are positional arguments. `_convert_` is ignored, as lists and dicts
    are always plain Python, and `_recursive_: false` is rejected. `hydra.utils.get_class`,
    `get_method` and `get_object` return the object that their `path` names.

    Hydra merges the files that a defaults list names, and OmegaConf resolves `${a.b}`. If that is a
    call, both paths share one node, which is built once; Hydra would build one for each. To Hydra
    and here, an alias of a YAML anchor is a copy.

    Args:
      text_or_path: contents of the file, or a Path to it, which a defaults list needs.
      select: the file for each of some groups of the defaults list: `{"model": "wide"}`.
      allowed: additional packages whose callables the file may name, besides those exported by
        fidgpt and torch's modules and optimizers.

    Returns:
      The node of the file's top level, or a dict or list of nodes if that is not a call.

    Raises:
      ConfigError: the extra `hydra` is missing or cannot read the file, or something in it is
        wrong, with its path. If a name is rejected, nothing that the file names is imported.
    """
    root = read_config(text_or_path, select)
    if isinstance(root, dict) and "defaults" in root and not _is_call(root):
        raise ConfigError(
            "defaults: names other files, which a text cannot find; pass the Path of the file."
        )
    for place, call in _calls(root, "", set()):  # before anything is imported
        with at(place):
            _check_call(call, allowed)
    try:
        graph = _Reader(allowed).value(root, "")
    except RecursionError:
        raise ConfigError("the file is nested too deeply, or contains itself.") from None
    nodes(graph)  # raises if a reference leads to a node that contains it
    return graph


def _calls(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Yield the calls of a tree of plain data, each with its first place."""
    if not isinstance(value, dict | list) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict) and _is_call(value):
        yield path or "the top", value
    for key, item in _entries(value):
        yield from _calls(item, walk.join(path, walk.step_to(key)), seen)


class _Reader:
    """Converts each container of a file once: calls, lists and dicts.

    Args:
      allowed: packages whose callables the file may name.
    """

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed
        self._converted: dict[int, Any] = {}

    def value(self, written: Any, path: str, hint: Any = Any, *, in_partial: bool = False) -> Any:
        """Return a value of the file as part of the graph.

        Args:
          written: the value as plain data.
          path: path of its first occurrence.
          hint: annotation of the parameter that receives it.
          in_partial: whether it is inside an argument of a partial.
        """
        if not isinstance(written, dict | list):
            return written
        if id(written) in self._converted:
            return self._converted[id(written)]
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
        converted = dict(zip(written, items, strict=True)) if isinstance(written, dict) else items
        self._converted[id(written)] = converted
        return converted

    def _call(self, written: dict[str, Any], path: str, hint: Any, in_partial: bool) -> Any:
        """Return a node, or the object that a call of `hydra.utils` names."""
        with at(path or "the top"):
            node = self._node(written, hint, in_partial)
        self._converted[id(written)] = node
        if not _is_lookup(written):
            self._set_arguments(node, written, path)
        return node

    def _node(self, written: dict[str, Any], hint: Any, in_partial: bool) -> Any:
        """Return a node without arguments."""
        name = _name_in(written)
        function = _find_target(name, allowed=self._allowed)
        if _is_lookup(written):
            return function
        if not callable(function) or is_tag(function):
            raise ConfigError(f"{name!r:.80} is not a constructor.")
        is_partial = written.get("_partial_") is True
        try:
            node = _node_of(fdl.Partial if is_partial else fdl.Config, function)
        except (TypeError, ValueError) as error:  # it has no signature
            raise ConfigError(f"{name} cannot be configured: {error}.") from error
        if is_partial and in_partial and _is_factory_for(hint, node):
            return _node_of(fdl.ArgFactory, function)
        return node

    def _set_arguments(self, node: fdl.Buildable, written: dict[str, Any], path: str) -> None:
        presets = {*fiddle.raw_arguments(node)}  # of a functools.partial
        arguments = [*enumerate(written.get("_args_", ()))]
        arguments += [item for item in written.items() if not _is_reserved(str(item[0]))]
        for key, value in arguments:
            with at(path or "the top"):
                _require_parameter(node, key)
            place = walk.join(path, walk.step_to(key))
            in_partial = isinstance(node, _FACTORIES)
            converted = self.value(value, place, hints.hint_of(node, key), in_partial=in_partial)
            with at(place):
                if key in fiddle.raw_arguments(node).keys() - presets:
                    raise ConfigError("is set twice, by name and in _args_.")
                fiddle.assign(node, key, _fitting(node, key, converted))


def _require_parameter(node: fdl.Buildable, key: str | int) -> None:
    if fiddle.parameter_of(node, key) is None:
        known = suggest(str(key), [str(name) for name in fiddle.all_arguments(node)])
        raise ConfigError(
            f"{fdl.get_callable(node).__name__} has no parameter {key!r:.60}. {known}"
        )


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


def _check_call(written: dict[Any, Any], allowed: tuple[str, ...]) -> None:
    """Raise ConfigError for a name that is not allowed, or a wrong setting of a call."""
    name = _name_in(written)
    if not isinstance(name, str):
        raise ConfigError("must name what it calls, such as torch.nn.Linear.")
    _require_allowed(name, allowed)
    if written.get("_recursive_") is False:
        raise ConfigError(
            "_recursive_ must be true; set _partial_: true on nodes to instantiate later."
        )
    for key in written:
        if _is_reserved(str(key)) and key not in (*_NAMES, *_SETTINGS):
            raise ConfigError(f"{key:.60} is unknown. {suggest(key, (*_NAMES, *_SETTINGS))}")


def _node_of(kind: type[fdl.Buildable], function: Any) -> fdl.Buildable:
    """Return a node for a callable; for a functools.partial, one for its function."""
    if isinstance(function, functools.partial):
        return kind(function.func, *function.args, **function.keywords)
    return kind(function)


def _is_factory_for(hint: Any, node: fdl.Buildable) -> bool:
    """Return whether a partial inside another one is an `ArgFactory`.

    It is if the annotation accepts the result of the node and rejects a function, or if it is a
    Protocol that instances of the class satisfy, as callables that are instances are not factories.
    """
    function = fdl.get_callable(node)
    is_answer = isinstance(function, type) and any(map(hints.is_protocol, hints.members_of(hint)))
    if not is_answer and hints.fits(fdl.Partial(function), hint):
        return False
    return hints.fits(fdl.ArgFactory(function), hint)


def _fitting(node: fdl.Buildable, key: str | int, value: Any) -> Any:
    """Return a value that fits a parameter's annotation; a default of None always does.

    So does any None for a callable of another library: many annotate as `str` what may be None.
    """
    default = fiddle.default_of(node, key)
    is_foreign = not _package(fdl.get_callable(node).__module__, ("fidgpt", "torch"))
    if value is None and (default is None or is_foreign):
        return None
    hint = hints.hint_of(node, key)
    value = as_asked(value, hint)
    if hints.fits(value, hint):
        return value
    if isinstance(value, str):
        return read_value(value, hint)
    raise ConfigError(f"must be {hints.name_of(hint)}, not {describe(value)}.")


def _require_allowed(name: str, allowed: tuple[str, ...]) -> None:
    """Raise ConfigError if a file may not name this, without importing anything."""
    parts = name.partition(":")[0].split(".")
    if not all(part.isidentifier() for part in parts) or (len(parts) < 2 and ":" not in name):
        raise ConfigError(f"{name!r:.80} is not a dotted name, such as torch.nn.Linear.")
    if not _package(name.replace(":", "."), (*_OWN, *TORCH_MODULES, *allowed)):
        raise ConfigError(
            f"{name!r:.80} is refused: a config file may name what fidgpt exports, modules of "
            "torch.nn, optimizers of torch.optim, and packages that you --allow (in Python, "
            "allowed=)."
        )


def _find_target(name: str, *, allowed: tuple[str, ...] = ()) -> Any:
    """Return the class or function of a dotted name, or of `module:qualname`.

    Raises:
      ConfigError: the name does not exist.
    """
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
    holders = (package for package in packages if f"{name}.".startswith(f"{package}."))
    return next(holders, None)


def _split_module(name: str, package: str) -> str:
    """Insert a colon after the module of a name; this imports its parent packages."""
    module, rest = package, name.removeprefix(package).strip(".").split(".")
    with contextlib.suppress(ModuleNotFoundError):  # the module is not a package
        while len(rest) > 1 and importlib.util.find_spec(f"{module}.{rest[0]}"):
            module = f"{module}.{rest.pop(0)}"
    return f"{module}:{'.'.join(rest)}"


def write_targets(root: Any) -> str:
    """Return a graph as YAML with a `_target_` for each node, which `read_targets` reads back.

    `fdl.Partial` and `fdl.ArgFactory` become `_partial_: true`. A shared node is written once, and
    elsewhere as a `${reference}`, and `read_targets` builds it once; Hydra builds one for each
    reference, which unties tied weights. Comments at the top of the file list such nodes, and those
    that Hydra would pass without calling them. The file has no tags: inherited quantities are
    written out.

    Raises:
      ConfigError: the graph cannot be bound, the extra `hydra` is missing, or values would not be
        read back unchanged.
    """
    bound = clone(bind(root))
    has_tags = _drop_tags(bound)
    all_nodes = nodes(bound)
    written: dict[int, Any] = {}
    for node in reversed(all_nodes):
        with at(node.path or "the top"):
            written[id(node.value)] = _written_node(node.value, written)
    shared = [node for node in all_nodes if len(node.parents) > 1 and _has_nodes(node)]
    places = dict.fromkeys(id(written[id(node.value)]) for node in shared)
    text = write_yaml(_with_references(written[id(bound)], "", places))
    with at("the YAML would not be read back"):
        names = [_name_in(call) for _, call in _calls(written[id(bound)], "", set())]
        others = (name for name in names if not _package(name, (*_OWN, *TORCH_MODULES)))
        again = read_targets(text, allowed=(*{name.partition(".")[0] for name in others},))
    raise_all(
        [
            f"{change.path or 'the top'}: would change when read back ({change.detail}); annotate "
            "the argument, or use a type of YAML, such as a list for a tuple."
            for change in diff(bound, again)
        ]
    )
    return "".join(f"# {line}\n" for line in _remarks(all_nodes, shared, has_tags)) + text


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


def _remarks(all_nodes: list[Node], shared: list[Node], has_tags: bool) -> Iterator[str]:
    """Yield the comments at the top of the file."""
    if has_tags:
        yield "Quantities that are inherited by tags are written out wherever they are inherited."
    factories = [node.path for node in all_nodes if type(node.value) is fdl.ArgFactory]
    lists = {
        "Built once by fidgpt; Hydra would build another at each reference:": [
            " = ".join(node.paths) for node in shared
        ],
        "Created on each call by fidgpt; Hydra would pass the uncalled partial:": factories,
    }
    for title, rows in lists.items():
        yield from [title, *(f"  {row}" for row in rows)] if rows else []


def _written_node(node: Any, written: dict[int, Any]) -> Any:
    """Return a node as plain data; its children are in `written`."""

    def value_of(value: Any) -> Any:
        return written.get(id(value)) if walk.is_node(value) else _written_value(value)

    if isinstance(node, list | tuple):
        return [value_of(item) for item in node]
    if isinstance(node, dict):
        for key in node:
            if not isinstance(key, str | int) or key in _NAMES:
                raise ConfigError(f"the key {key!r:.60} cannot be written; use another.")
        return {key: value_of(item) for key, item in node.items()}
    if fiddle.kind_of(node) not in (fdl.Config, *_FACTORIES):
        raise ConfigError(f"a {type(node).__name__} cannot be written; use Config or Partial.")
    call: dict[str, Any] = {"_target_": _dotted_name(fdl.get_callable(node))}
    if isinstance(node, _FACTORIES):
        call["_partial_"] = True
    arguments = fiddle.set_arguments(node)
    count = 1 + max((key for key in arguments if isinstance(key, int)), default=-1)
    names: dict[int, str | int] = dict(enumerate(fiddle.parameters_of(node)))
    unnamed = [key if key in arguments else names.get(key, key) for key in range(count)]
    if unnamed:
        call["_args_"] = [value_of(arguments[key]) for key in unnamed]
    for key, value in arguments.items():
        if key not in unnamed:
            call[str(key)] = value_of(value)
    return call


def _written_value(value: Any) -> Any:
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
            f"{describe(value)} cannot be written; use a fdl.Config, or plain values."
        )
    kind = "class" if inspect.isclass(value) else "object"
    return {"_target_": f"hydra.utils.get_{kind}", "path": _dotted_name(value)}


def _has_nodes(node: Node) -> bool:
    """Return whether two copies would differ from a shared node."""
    return node.is_shared or any(walk.is_node(child) for _, child in walk.children(node.value))


def _with_references(value: Any, path: str, places: dict[int, str | None]) -> Any:
    """Return a tree in which shared values stand at their first place, with references elsewhere.

    Args:
      value: the tree.
      path: of the value.
      places: the first place of each shared value, by its id; None before that is known.
    """
    if not isinstance(value, dict | list):
        return value
    if (place := places.get(id(value))) is not None:
        return f"${{{place}}}"
    if id(value) in places:
        places[id(value)] = path
    items = {
        key: _with_references(item, walk.join(path, walk.step_to(key)), places)
        for key, item in _entries(value)
    }
    return items if isinstance(value, dict) else [*items.values()]

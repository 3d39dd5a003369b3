"""The index of names: built from the configs, fiddlers and components."""

import collections.abc
import enum
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt.compose.catalogue import Catalogue, own_catalogue
from fidgpt.compose.command_flags import command_flags
from fidgpt.compose.directives import compose
from fidgpt.compose.index import (
    VERSION,
    Index,
    chosen_config,
    rooms_of_projects,
    roots,
    stamps,
)
from fidgpt.compose.knobs import Knob, knobs_of
from fidgpt.compose.names import Entry, function_entry, names, tag_entry
from fidgpt.compose.spelling import split_directive
from fidgpt.graph import parts
from fidgpt.graph.docs import doc_of
from fidgpt.graph.fiddle import argument_tags
from fidgpt.graph.formulas import parse_call
from fidgpt.graph.hints import (
    fits,
    hints_of,
    is_protocol,
    is_unknown,
    members_of,
    methods_of,
    name_of,
    own_method,
)


def parts_on_offer(known: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the known parts that build something which a graph could hold."""
    return {name: made for name, made in known.items() if _builds(made)}


def part_entry(made: Any) -> dict[str, Any]:
    """What is known of a part: its module, its doc and its arguments."""
    docs, hints = doc_of(made), hints_of(made)
    module = ".".join(made.__module__.split(".")[:2])
    return {
        "module": module,
        "doc": docs.summary,
        "arguments": [
            {"name": name}
            | ({"type": name_of(hints[name])} if name in hints else {})
            | ({"default": f"{p.default!r:.60}"} if p.default is not p.empty else {})
            | ({"doc": docs.parameters[name]} if name in docs.parameters else {})
            for name, p in inspect.signature(made).parameters.items()
        ],
    }


def fitting(hint: Any, offered: dict[str, Any]) -> list[str]:
    """The names of the parts on offer that may stand where a hint is asked."""
    if all(is_unknown(member) for member in members_of(hint)):
        return []
    members = members_of(hint)
    return [name for name, made in offered.items() if any(_fits(made, one) for one in members)]


def _fits(made: Any, hint: Any) -> bool:
    """As `graph.signatures.hints.fits`, and stricter where that gives the benefit of the doubt.

    What is asked for by a Protocol must have its methods, and what is asked for as a function must
    take as many arguments.
    """
    if typing.get_origin(hint) is collections.abc.Callable:
        asked, returned = typing.get_args(hint)
        return _takes(made, asked) and _makes(made, returned)
    return _makes(made, hint)


def _makes(made: Any, hint: Any) -> bool:
    returned = hints_of(made).get("return", Any)
    returned, hint = (getattr(side, "array_type", side) for side in (returned, hint))
    if is_unknown(hint) or hint in (bool, str, type(None)):
        return False
    if is_protocol(hint):
        if inspect.isfunction(made) and _answers(made, hint):
            return True
        has_methods = inspect.isclass(returned) and _has_methods(returned, hint)
        return has_methods and fits(fdl.Config(returned), hint)
    if is_protocol(returned):
        return False
    if typing.get_origin(hint):  # a list of something: its elements are parts, it is none
        return False
    if typing.is_typeddict(hint):
        return returned is hint
    if inspect.isclass(returned) and inspect.isclass(hint):
        return issubclass(returned, hint)
    return fits(fdl.Config(made), hint)


def _takes(made: Any, asked: Any) -> bool:
    if not isinstance(asked, list) or not asked:  # a partial holds all that is needed
        return True
    try:
        inspect.signature(made).bind(*asked)
    except TypeError:
        return False
    return True


def _has_methods(made: type, protocol: Any) -> bool:
    """Whether a class has the methods of a Protocol, each with the same arguments."""
    return all(
        inspect.isfunction(own := own_method(made, name)) and _is_alike(own, method, first=1)
        for name, method in methods_of(protocol).items()
    )


def _answers(function: Any, protocol: Any) -> bool:
    """Whether a function itself is what a Protocol asks, which is no more than a call."""
    asked = methods_of(protocol)
    return [*asked] == ["__call__"] and _is_alike(function, asked["__call__"], first=0)


def _is_alike(own: Any, asked: Any, *, first: int) -> bool:
    """Whether one takes the arguments of the other, by position such as may be of one kind.

    The `first` argument of a method is `self`.
    """
    count, needed = _call_shape(own)
    if (count + 1 - first, needed) != _call_shape(asked):
        return False
    pairs = zip(_hints(own)[first:count], _hints(asked)[1:], strict=True)
    return all(
        any(map(is_unknown, (*members_of(one), *members_of(other))))
        or not {*map(_kind, members_of(one))}.isdisjoint(map(_kind, members_of(other)))
        for one, other in pairs
    )


def _hints(function: Any) -> list[Any]:
    """What a function asks of each argument by position."""
    hints = hints_of(function)
    names = list(inspect.signature(function).parameters)[: _call_shape(function)[0]]
    return [hints.get(name, Any) for name in names]


def _kind(hint: Any) -> Any:
    """What a hint asks, whatever the sizes of a tensor."""
    return getattr(hint, "dtypes", hint) if hasattr(hint, "array_type") else hint


def _call_shape(method: Any) -> tuple[int, set[str]]:
    """How many arguments a method takes by position, and which it needs by name."""
    parameters = inspect.signature(method).parameters.values()
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    needed = {
        one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty
    }
    return sum(one.kind not in by_name for one in parameters), needed


def _builds(made: Any) -> bool:
    """Whether calling it makes something that a graph could hold, by arguments that are known."""
    try:
        inspect.signature(made)
    except ValueError:  # such as a heir of dict
        return False
    if inspect.isclass(made):
        is_shape = is_protocol(made) or inspect.isabstract(made)
        return not is_shape and not issubclass(made, BaseException | enum.Enum)
    returned = hints_of(made).get("return", Any) if inspect.isfunction(made) else Any
    return not is_unknown(returned) and returned not in (None, type(None))


def build_index() -> Index:
    """The index, from everything that can be named on the command line."""
    own = names()
    before = stamps(roots([]))  # a file that changes meanwhile shall make it untrue
    catalogue = own_catalogue()
    files = _files(catalogue)
    offered = parts_on_offer(catalogue.parts)
    hints: dict[str, Any] = {}
    knobs = {
        name: knobs_of(root, lambda hint: hints.setdefault(name_of(hint), hint))
        for name, root in _graphs(catalogue).items()
    }
    return {
        "version": VERSION,
        "roots": roots(files),
        "stamps": stamps(files) | before,
        "configs": _functions(catalogue.configs, own["configs"]),
        "fiddlers": _functions(catalogue.fiddlers, own["fiddlers"], skip=1),
        "tags": {
            name: own["tags"].get(name) or tag_entry(_file(tag), tag.__name__) or {}
            for name, tag in catalogue.tags.items()
        },
        "parts": {name: part_entry(made) for name, made in offered.items()},
        "fits": _not_empty({name: fitting(hint, offered) for name, hint in hints.items()}),
        "knobs": knobs,
        "quantities": {name: quantities_of(knobs[name]) for name in knobs},
        "flags": command_flags(),
    }


def build_chosen(directive: str, allowed: Sequence[str] = ()) -> Index:
    """The index of the one config that a directive begins with, by the name that it has there.

    Raises:
      ConfigError: the directive is wrong.
    """
    catalogue = own_catalogue(tuple(allowed))
    root = compose([directive], catalogue)
    kind, rest = split_directive(directive)
    made = catalogue.find(kind, parse_call(rest).name) if kind == "config" else None
    seen = roots([str(Path(rest).absolute())] if kind == "config_file" else [])
    seen += _folders([made, *(fdl.get_callable(node.value) for node in parts(root))])
    hints: dict[str, Any] = {}
    knobs = knobs_of(root, lambda hint: hints.setdefault(name_of(hint), hint))
    offered = parts_on_offer(catalogue.parts)
    own = _own_tags(root, catalogue)
    found = quantities_of(knobs)
    name = chosen_config([directive])
    return {
        "version": VERSION,
        "roots": seen,
        "stamps": stamps(seen),
        "configs": {name: {"doc": doc_of(made).summary if made else ""}},
        "tags": {dotted: tag_entry(_file(tag), tag.__name__) for dotted, tag in own.items()},
        "parts": {name: part_entry(made) for name, made in offered.items()},
        "fits": _not_empty({name: fitting(hint, offered) for name, hint in hints.items()}),
        "knobs": {name: knobs},
        "quantities": {name: found | {one: found[tag.__name__] for one, tag in own.items()}},
    }


def quantities_of(knobs: list[Knob]) -> dict[str, dict[str, list[str]]]:
    """For each tag of a config's knobs the paths that say it and those that hear it."""
    found: dict[str, dict[str, list[str]]] = {}
    for knob in knobs:
        for tag in knob.get("tags", []):
            both = found.setdefault(tag, {"says": [], "hears": []})
            if "heard" in knob:
                both["hears"].append(knob["path"])
            elif "unset" not in knob:
                both["says"].append(knob["path"])
    return found


def _graphs(catalogue: Catalogue) -> dict[str, fdl.Buildable]:
    """The graph of every config that needs no argument; one that fails has no knobs to show."""
    graphs: dict[str, fdl.Buildable] = {}
    for name, function in catalogue.configs.items():
        try:
            made = function()
        except Exception:  # in code that somebody else wrote; naming it will say what is wrong
            continue
        if isinstance(made, fdl.Buildable):
            graphs[name] = made
    return graphs


def _functions(
    known: Mapping[str, Callable[..., Any]], own: dict[str, Entry], *, skip: int = 0
) -> dict[str, Entry]:
    """The entries of functions; those of projects outside are read where they were written."""
    return {
        name: own.get(name) or function_entry(_file(one), one.__name__, skip=skip) or {"doc": ""}
        for name, one in known.items()
    }


def _files(catalogue: Catalogue) -> list[str]:
    """The sources of what is named, and the modules of projects that list it."""
    listed = [*catalogue.configs.values(), *catalogue.fiddlers.values(), *catalogue.tags.values()]
    rooms = [path for rooms in rooms_of_projects().values() for path in rooms.values()]
    folders = [str(path.parent if path.stem == "__init__" else path) for path in rooms]
    return [path for one in listed if (path := str(_file(one))).endswith(".py")] + folders


def _file(named: Any) -> Path:
    module = sys.modules.get(getattr(inspect.unwrap(named), "__module__", ""))
    return Path(getattr(module, "__file__", None) or "")


def _own_tags(root: Any, catalogue: Catalogue) -> dict[str, Any]:
    """The tags of a graph that have no name in the catalogue, by dotted name."""
    carried = {
        tag for node in parts(root) for tags in argument_tags(node.value).values() for tag in tags
    }
    named = set(catalogue.tags.values())
    return {f"{tag.__module__}.{tag.__name__}": tag for tag in carried - named}


def _folders(named: Iterable[Any]) -> list[str]:
    """Where the packages lie that somebody works on, in which some of what is named is written."""
    tops = {(getattr(one, "__module__", None) or "").partition(".")[0] for one in named}
    files = [getattr(sys.modules.get(top), "__file__", None) for top in tops - {"fidgpt"}]
    own = [Path(file) for file in files if file and "site-packages" not in Path(file).parts]
    return sorted(str(file.parent if file.stem == "__init__" else file) for file in own)


def _not_empty(lists: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: one for name, one in lists.items() if one}

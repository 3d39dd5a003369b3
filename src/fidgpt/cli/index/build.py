"""Builds the whole index, which takes a few seconds: everything is imported and composed."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt.cli.catalogue.catalogue import Catalogue, own_catalogue
from fidgpt.cli.directives.directives import compose
from fidgpt.cli.directives.spelling import split_directive
from fidgpt.cli.index.command_flags import command_flags
from fidgpt.cli.index.knobs import Knob, knobs_of
from fidgpt.cli.index.names import Entry, function_entry, names, tag_entry
from fidgpt.cli.index.parts import fitting, part_entry, parts_on_offer
from fidgpt.cli.index.projects import rooms_of_projects
from fidgpt.cli.index.store import VERSION, Index, roots, stamps
from fidgpt.cli.showing.chosen import chosen_config
from fidgpt.graph import parts
from fidgpt.graph.signatures.docs import doc_of
from fidgpt.graph.signatures.hints import name_of
from fidgpt.graph.typed.calls import parse_call


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
        tag
        for node in parts(root)
        for tags in node.value.__argument_tags__.values()
        for tag in tags
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

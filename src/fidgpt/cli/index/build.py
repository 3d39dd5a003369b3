"""Builds the whole index, which takes a few seconds: everything is imported and composed."""

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt.cli.catalogue.catalogue import Catalogue, own_catalogue
from fidgpt.cli.index.command_flags import command_flags
from fidgpt.cli.index.knobs import Knob, knobs_of
from fidgpt.cli.index.names import Entry, function_entry, names, tag_entry
from fidgpt.cli.index.parts import fitting, part_entry, parts_on_offer
from fidgpt.cli.index.projects import rooms_of_projects
from fidgpt.cli.index.store import VERSION, Index, roots, stamps
from fidgpt.graph.signatures.hints import name_of


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


def _not_empty(lists: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: one for name, one in lists.items() if one}

"""Names of configs, fiddlers, tags and components, read from source code without importing it."""

import ast
import contextlib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fidgpt.compose.index import PACKAGE

Entry = dict[str, Any]


def names() -> dict[str, dict[str, Entry]]:
    """The entries of fidgpt's own configs, fiddlers and tags, without importing any of them."""
    own = {room: PACKAGE / room / "__init__.py" for room in ("configs", "fiddlers")}
    found = _entries(own | {"tags": PACKAGE / "tags.py"})
    reader = PACKAGE / "interop" / "hugging_face" / "load.py"
    found["configs"]["from_hf"] = function_entry(reader, "from_hf") or {}
    return found


def names_of_projects() -> dict[str, dict[str, Entry]]:
    """The same of the installed projects, by dotted name."""
    from fidgpt.compose.index import rooms_of_projects

    found: dict[str, dict[str, Entry]] = {"configs": {}, "fiddlers": {}, "tags": {}}
    for package, rooms in rooms_of_projects().items():
        told = {room: path for room, path in rooms.items() if room in found}  # parts take imports
        for room, entries in _entries(told).items():
            named = {f"{package}.{room}.{name}": entry for name, entry in entries.items()}
            found[room] |= named
    return found


def _entries(rooms: dict[str, Path]) -> dict[str, dict[str, Entry]]:
    """What the modules of each room list, by name."""
    return {
        room: tags_of(path) if room == "tags" else functions_of(path, skip=room == "fiddlers")
        for room, path in rooms.items()
    }


def function_entry(path: Path, name: str, *, skip: int = 0) -> Entry | None:
    """What a file says of a function; `skip` of its arguments are not told. None: not there."""
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            arguments = list(_arguments(node.args))[skip:]
            return {"doc": _doc(node), "file": str(path), "line": node.lineno} | (
                {"arguments": arguments} if arguments else {}
            )
    return None


def tag_entry(path: Path, name: str) -> Entry | None:
    """What a file says of a tag. None: not there."""
    for node in tree_of(path).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            doc = _doc(node)
            entry = {"doc": doc, "file": str(path), "line": node.lineno}
            _, _, last = doc.rstrip(".").rpartition(", ")
            is_unit = last.startswith(("in ", "per ", "from ")) and "," in doc
            return entry | ({"unit": last.removeprefix("in ")} if is_unit else {})
    return None


def class_entry(node: ast.ClassDef) -> Entry:
    """What a file says of a class: its doc, and the arguments of its own constructor."""
    inits = [
        one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"
    ]
    arguments = list(_arguments(inits[0].args))[1:] if inits else []
    return {"doc": _doc(node)} | ({"arguments": arguments} if arguments else {})


def functions_of(source: Path, *, skip: int = 0) -> dict[str, Entry]:
    """What a module lists in `__all__`, or else defines, each where it was imported from."""
    homes: dict[str, str] = {}
    body = tree_of(source).body
    defined = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    listed = [name for name in defined if not name.startswith("_")]
    for node in body:
        match node:
            case ast.ImportFrom(module=str(module), names=aliases):
                homes |= {alias.asname or alias.name: module for alias in aliases}
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                with contextlib.suppress(ValueError):  # it is computed
                    listed = ast.literal_eval(value)
    entries: dict[str, Entry] = {}
    for name in listed:
        path = source.parent / f"{homes[name].rpartition('.')[2]}.py" if name in homes else source
        entries[name] = function_entry(path, name, skip=skip) or {"doc": "", "file": str(path)}
    return entries


def tags_of(path: Path) -> dict[str, Entry]:
    """The classes of a module of tags."""
    classes = [node.name for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
    return {name: tag_entry(path, name) or {} for name in classes}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """What a file says; nothing where it cannot be read."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):  # who imports it will say it better
        return ast.Module(body=[], type_ignores=[])


def _doc(node: ast.FunctionDef | ast.ClassDef) -> str:
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())


def _arguments(arguments: ast.arguments) -> Iterator[Entry]:
    positional = arguments.posonlyargs + arguments.args
    missing = [None] * (len(positional) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip(positional + arguments.kwonlyargs, defaults, strict=True):
        entry = {"name": argument.arg}
        if argument.annotation:
            entry["type"] = ast.unparse(argument.annotation)
        yield entry | ({"default": ast.unparse(default)} if default else {})


def offered_beside(dotted: str, kind: str) -> dict[str, Entry]:
    """What a module offers as a config, fiddler, tag or part, by dotted name.

    Args:
      dotted: a name as far as it is typed: `lab.ablations.nar` for what is in `lab.ablations`.
      kind: what is wanted.
    """
    module, _, _ = dotted.rpartition(".")
    path = source_of(module)
    if path is None or path.is_dir():
        return {}
    return {f"{module}.{name}": entry for name, entry in _offered(path, kind).items()}


def modules_beside(dotted: str) -> list[str]:
    """The dotted names of the modules in the package that a name leads to so far."""
    package, _, _ = dotted.rpartition(".")
    path = source_of(package)
    folder = path.parent if path and path.name == "__init__.py" else path
    if folder is None or not folder.is_dir():
        return []
    inside = sorted(one for one in folder.iterdir() if not one.name.startswith(("_", ".")))
    found = [one.stem for one in inside if one.suffix == ".py" or (one / "__init__.py").is_file()]
    return [f"{package}.{name}" for name in found if name.isidentifier()]


def source_of(module: str) -> Path | None:
    """The file of a module, or the folder of a package that has none; None where there is none."""
    names = module.split(".")
    if not all(name.isidentifier() for name in names):
        return None
    return next(filter(None, (_inside(Path(folder), names) for folder in sys.path)), None)


def _inside(folder: Path, names: list[str]) -> Path | None:
    *packages, last = names
    around = folder.joinpath(*packages)
    files = (around / last / "__init__.py", around / f"{last}.py", around / last)
    return next((one for one in files if one.exists()), None)


def _offered(path: Path, kind: str) -> dict[str, Entry]:
    if kind == "tag":
        return tags_of(path)
    changes = {
        node.name
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef) and _is_fiddler(node)
    }
    functions = functions_of(path, skip=kind == "fiddler")
    if kind == "fiddler":
        return {name: entry for name, entry in functions.items() if name in changes}
    found = {name: entry for name, entry in functions.items() if name not in changes}
    return found | (_classes(path) if kind == "part" else {})


def _is_fiddler(function: ast.FunctionDef) -> bool:
    """Whether a function takes a graph, as far as its signature tells, and returns nothing."""
    first = [*function.args.posonlyargs, *function.args.args][:1]
    returns = function.returns
    is_for_nothing = isinstance(returns, ast.Constant) and returns.value is None
    return bool(first) and (is_for_nothing or (returns is None and first[0].arg == "cfg"))


def _classes(path: Path) -> dict[str, Entry]:
    return {
        node.name: class_entry(node)
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }

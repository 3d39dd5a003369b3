"""Modules of a user's own that nobody declared, read from their sources without importing them."""

import ast
import sys
from pathlib import Path

from fidgpt.cli.index.names import Entry, class_entry, functions_of, tags_of, tree_of


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

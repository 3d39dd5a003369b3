"""Who may import whom: the rules, and the imports of a source file that break them."""

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

LIBRARY = {"model", "recording", "cost", "optim", "data", "parallel"}
ROOT = {"attributes", "declarations", "files", "placement", "processes", "ranges", "schedule"}
# Files that import nothing of fidgpt.
ALONE = {*ROOT, "__init__", "collection", "errors", "heap", "late"}
SHORT_NAMES = {"tags", "configs", "fiddlers"}  # links in fidgpt: one file, and one import name only

# Which parts of fidgpt a part may import besides itself. Parts that are not here (cli, interop,
# sample, the root's scripts, tests) import what they like, and nothing here may import them.
INSIDE = {
    **dict.fromkeys(ALONE | {"tags"}, frozenset()),
    **dict.fromkeys(LIBRARY, ROOT),
    "placement": {"processes"},
    "recording": ROOT | {"model"},
    "cost": ROOT | {"model", "recording"},
    "parallel": ROOT | {"model", "cost"},
    "plan": LIBRARY | ROOT,
    "train": LIBRARY | ROOT | {"heap", "plan"},
    "graph": {"collection", "errors", "late"},
    "fiddlers": LIBRARY | {"train", "graph", "tags", "ranges"},
    "configs": LIBRARY | {"train", "graph", "tags", "fiddlers", "ranges"},
    # The language knows no component and no trainer: who runs what it made knows both.
    "compose": ROOT | {"errors", "graph", "tags", "fiddlers", "configs", "late"},
    "runs": LIBRARY
    | ROOT
    | {"errors", "plan", "train", "graph", "tags", "fiddlers", "configs", "compose"},
}

# Which packages a part may import besides Python's own. The library knows no configuration layer.
LIBRARY_PACKAGES = {"jaxtyping", "numpy", "rich", "safetensors", "tokenizers", "torch"}
OUTSIDE = {
    **dict.fromkeys(ALONE, frozenset()),
    "placement": {"torch"},
    "processes": {"torch"},
    **dict.fromkeys(LIBRARY | {"plan", "train"}, frozenset(LIBRARY_PACKAGES)),
    "graph": {"beartype", "docstring_parser", "fiddle", "graphviz", "rich", "yaml"},
    "tags": {"fiddle"},
    "fiddlers": {"fiddle", "torch"},
    "configs": {"fiddle", "torch"},
    "compose": {"fiddle", "yaml"},
    "runs": {"fiddle", "torch"},
}

# The same, inside functions only: an extra that may be missing, or too slow for who needs it not.
# Trackers may import what they declare as their `packages`, too.
LAZY = {
    "compose": {"fsspec"},
    "data": {"datasets", "fsspec", "huggingface_hub", "jinja2", "pyarrow"},
    "graph": {"torch"},
    "model": {"torchao"},
    "optim": {"pytorch_optimizer"},
    "train": {"fsspec", "lm_eval", "yaml"},
}

# Without a public form; torch's manual teaches the last.
PRIVATE = (
    "torch._inductor.compile_fx",
    "torch.distributed.distributed_c10d._set_pg_timeout",
    "torch.distributed._functional_collectives",
    "torch.distributed.pipelining._schedule_visualizer.get_schedule_ops",
    "torch.fx.experimental._config",
    "torch.utils._pytree.tree_flatten",
    "torch.utils._pytree.tree_unflatten",
    "torch.utils._python_dispatch.TorchDispatchMode",
)
IMPORTERS = {"import_module", "__import__"}  # what imports a name that it is called with
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Use(NamedTuple):
    """One thing that a file takes from elsewhere, by its absolute dotted name."""

    line: int
    name: str
    lazy: bool = False


def part_of(dotted: str) -> str:
    """`fidgpt.model.mlp` -> `model`; what is not inside fidgpt, and fidgpt itself -> ``."""
    top, _, rest = dotted.partition(".")
    return rest.partition(".")[0] if top == "fidgpt" else ""


def dotted_path(path: PurePosixPath) -> str:
    """`src/fidgpt/model/mlp.py` -> `fidgpt.model.mlp`; `tags.py` -> `fidgpt.tags`."""
    parts = path.with_suffix("").parts
    if parts[0] == "src":
        parts = parts[1:]
    elif parts[0] in SHORT_NAMES:
        parts = ("fidgpt", *parts)
    return ".".join(parts)


@functools.cache
def imports(source: str, path: PurePosixPath) -> list[Use]:
    """Every import of a file, those inside functions, relative ones and `import_module` too."""
    package = dotted_path(path).removesuffix(".__init__").split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    may_call = any(name in source for name in IMPORTERS)
    uses: list[Use] = []
    todo: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while todo:
        node, lazy = todo.pop()
        match node:
            case ast.Import(names=names):
                uses += (Use(node.lineno, alias.name, lazy) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                base = ".".join([*base, *([module] if module else [])])
                uses += (Use(node.lineno, f"{base}.{alias.name}", lazy) for alias in names)
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
                if ast.unparse(func).split(".")[-1] in IMPORTERS:
                    uses.append(Use(node.lineno, name, lazy))
        if may_call or not isinstance(node, ast.expr):
            lazy = lazy or isinstance(node, FUNCTIONS)
            todo += [(child, lazy) for child in ast.iter_child_nodes(node)]
    return uses


def packages_of_trackers(tree: ast.AST) -> set[str]:
    """The packages that classes of a file declare as `packages = ("wandb",)`, as trackers do."""
    return {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "packages"
        for name in ast.literal_eval(statement.value)
    }


def is_allowed(use: Use, part: str, extras: set[str]) -> bool:
    """Whether a part of fidgpt that has a row in the tables above may import this."""
    top = use.name.partition(".")[0]
    if top == "fidgpt":
        return part_of(use.name) in INSIDE[part] | {part, "__version__"}
    lazily = LAZY.get(part, set()) | extras if use.lazy else set()
    return top in OUTSIDE[part] | lazily or top in sys.stdlib_module_names


def broken_rules(path: str, source: str) -> list[str]:
    """What is wrong with the imports of the file at `path` (from the root of the checkout)."""
    place = PurePosixPath(path)
    here = dotted_path(place)
    part = part_of(here)
    uses = imports(source, place)
    broken = [
        f"{path}:{use.line}: {use.name}: import fidgpt.{use.name}, its only name"
        for use in uses
        if use.name.partition(".")[0] in SHORT_NAMES
    ]
    if place.parts[0] == "tests":
        return broken
    broken += [
        f"{path}:{use.line}: {use.name}: private to its package"
        for use in uses
        if re.search(r"\._(?!_)", use.name)
        and not use.name.startswith((f"fidgpt.{part}.", *PRIVATE))
    ]
    if part not in INSIDE:
        return broken
    extras = packages_of_trackers(ast.parse(source)) if part == "train" else set()
    refused = [use for use in uses if not is_allowed(use, part, extras)]
    return broken + [f"{path}:{use.line}: {use.name}: {part} may not import it" for use in refused]


def import_edges(sources: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return which module imports which, lazily or for types alone too; `sources` are by path.

    `__main__` modules are left out: they start a command, and nothing imports them.
    """
    paths = {dotted_path(PurePosixPath(path)).removesuffix(".__init__"): path for path in sources}
    edges: set[tuple[str, str]] = set()
    for name, path in paths.items():
        if name.endswith(".__main__"):
            continue
        for use in imports(sources[path], PurePosixPath(path)):
            target = use.name
            while target and target not in paths:
                target = target.rpartition(".")[0]
            if target not in ("", name):
                edges.add((name, target))
    return edges


def first_circle(edges: Iterable[tuple[str, str]], depth: int) -> list[str]:
    """Return a circle of imports among files and folders at a depth of the tree; [] if none."""
    graph: dict[str, set[str]] = {}
    for edge in edges:
        one, other = (".".join(name.split(".")[:depth]) for name in edge)
        if one != other and not one.startswith(f"{other}.") and not other.startswith(f"{one}."):
            graph.setdefault(one, set()).add(other)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []

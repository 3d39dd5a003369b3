"""The layout of the checkout: who imports whom, the root's links, sizes of files, the tags."""

import ast
import functools
import importlib
import inspect
import json
import os
import pkgutil
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from import_rules import broken_rules, first_circle, import_edges

import fidgpt
from fidgpt import declarations

ROOT = Path(__file__).parent.parent
MAX_LINES = 900
FIDDLES = {
    *("__arguments__", "__argument_history__", "__argument_tags__", "__build__", "__fn_or_cls__"),
    *("__flatten__", "__init_callable__", "__path_elements__", "__signature_info__"),
    "__unflatten__",
}


@functools.cache
def python_files() -> list[Path]:
    """The project's own sources, each under its real path only."""
    folders = ("src", "configs", "fiddlers", "tests", "benchmarks", "notebooks")
    found = [path for name in folders for path in (ROOT / name).rglob("*.py")]
    return sorted(path for path in [*ROOT.glob("*.py"), *found] if path.resolve() == path)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def notebook_source(path: Path) -> str:
    """The code of a notebook's cells, without its shell and magic lines."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines = [
        line
        for cell in cells
        if cell["cell_type"] == "code"
        for line in "".join(cell["source"]).splitlines()
    ]
    return "\n".join("" if line.startswith(("!", "%")) else line for line in lines)


def problems_of(path: Path) -> list[str]:
    """All that is wrong with a file."""
    name, source = relative(path), path.read_text(encoding="utf-8")
    problems = broken_rules(name, source)
    if (num_lines := len(source.splitlines())) > MAX_LINES:
        problems.append(f"{name} has {num_lines} lines, past {MAX_LINES}")
    if not ast.get_docstring(ast.parse(source)):
        problems.append(f"{name} has no docstring")
    if path.name == "utils.py":
        problems.append(f"{name}: a file is named after what it holds")
    return problems


@pytest.mark.parametrize("folder", sorted({relative(path.parent) for path in python_files()}))
def test_files_keep_the_rules(folder: str) -> None:
    files = [path for path in python_files() if relative(path.parent) == folder]
    problems = [problem for path in files for problem in problems_of(path)]
    assert not problems, "\n" + "\n".join(problems)


def test_notebooks_use_the_one_import_name() -> None:
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert not broken_rules(relative(path), notebook_source(path))


@pytest.mark.parametrize("name", ["configs", "fiddlers", "tags.py"])
def test_the_roots_folders_are_linked_into_the_package(name: str) -> None:
    link = ROOT / "src" / "fidgpt" / name
    assert link.is_symlink() and os.readlink(link) == f"../../{name}"
    assert link.resolve() == ROOT / name


@pytest.mark.slow
def test_no_files_or_folders_import_each_other_in_a_circle() -> None:
    names = {path: relative(path) for path in python_files()}
    sources = {
        name: path.read_text(encoding="utf-8")
        for path, name in names.items()
        if name.startswith(("src/", "configs/", "fiddlers/", "tags.py"))
    }
    edges = import_edges(sources)
    assert not [circle for depth in (2, 3, 4, 5) if (circle := first_circle(edges, depth))]


def test_a_circle_is_found_among_files_and_among_folders() -> None:
    sources = {
        "src/fidgpt/a/one.py": "from fidgpt.b import two",
        "src/fidgpt/b/two.py": "X = 1",
        "src/fidgpt/b/other.py": "def f():\n    from fidgpt.a.one import g",
    }
    assert set(first_circle(import_edges(sources), 2)) == {"fidgpt.a", "fidgpt.b"}
    assert not first_circle(import_edges(sources), 3)


@pytest.mark.parametrize(
    "package", [one.name for one in pkgutil.walk_packages(fidgpt.__path__, "fidgpt.") if one.ispkg]
)
def test_no_exported_name_hides_a_module(package: str) -> None:
    module = importlib.import_module(package)
    modules = {one.name for one in pkgutil.iter_modules(module.__path__)}
    hidden = {n for n in modules & {*dir(module)} if not isinstance(getattr(module, n), ModuleType)}
    assert not hidden


def test_only_the_adapter_uses_fiddles_own_attributes() -> None:
    adapter = ROOT / "src/fidgpt/graph/fiddle.py"
    found: list[str] = []
    for path in python_files():
        if path.is_relative_to(ROOT / "tests") or path == adapter:
            continue
        source = path.read_text(encoding="utf-8")
        if not any(name in source for name in FIDDLES):
            continue
        for node in ast.walk(ast.parse(source)):
            is_fiddles = isinstance(node, ast.Attribute) and node.attr in FIDDLES
            if is_fiddles or (isinstance(node, ast.Constant) and node.value in FIDDLES):
                found.append(f"{relative(path)}:{getattr(node, 'lineno', 0)}")
    assert not found


def test_tags_hold_nothing_but_tags_with_docstrings() -> None:
    for node in ast.parse((ROOT / "tags.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            assert len(node.bases) == 1 and ast.get_docstring(node), node.name
        else:
            assert isinstance(node, ast.Import | ast.ImportFrom | ast.Expr), ast.unparse(node)


def test_what_classes_may_declare_is_in_one_file_and_one_table() -> None:
    protocols = [
        node
        for node in ast.parse(inspect.getsource(declarations)).body
        if isinstance(node, ast.ClassDef)
    ]
    assert all(ast.get_docstring(node) for node in protocols)
    names = {
        ast.unparse(member.target) if isinstance(member, ast.AnnAssign) else member.name
        for node in protocols
        for member in node.body
        if isinstance(member, ast.AnnAssign | ast.FunctionDef)
    }
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    table = text.partition("## What a class may declare")[2].partition("\n\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert names == {name for row in rows for name in re.findall("`(.*?)`", row)}


def test_commands_have_their_functions() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        scripts: dict[str, str] = tomllib.load(file)["project"]["scripts"]
    for command, target in scripts.items():
        module, _, function = target.partition(":")
        path = ROOT / "src" / (module.replace(".", "/") + ".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert function in names, f"{command} calls {target}"


FORBIDDEN = [
    ("src/fidgpt/model/a.py", "import fiddle as fdl"),
    ("src/fidgpt/parallel/a.py", "def f():\n    import fidgpt.graph"),
    ("src/fidgpt/model/a.py", "import importlib\nimportlib.import_module('fidgpt.cli.train')"),
    ("src/fidgpt/model/a.py", "import fidgpt.train.trainer"),
    ("src/fidgpt/data/a.py", "import pyarrow.parquet"),
    ("src/fidgpt/train/a.py", "def f():\n    import aim"),
    ("src/fidgpt/graph/a.py", "from fidgpt.model import mlp"),
    ("src/fidgpt/graph/a.py", "from fiddle._src import daglish"),
    ("src/fidgpt/train/a.py", "from fidgpt.model.mlp import _gate"),
    ("tags.py", "from fidgpt.graph import bind"),
    ("fiddlers/a.py", "from fidgpt.configs import base"),
    ("train.py", "import tags"),
    ("tests/a.py", "from configs.small import base"),
]
ALLOWED = [
    ("src/fidgpt/model/a.py", "from . import mlp\nfrom .mlp import _gate"),
    ("src/fidgpt/train/a.py", "from fidgpt import __version__\nfrom fidgpt.model import mlp"),
    ("src/fidgpt/cli/a.py", "from absl import app\nfrom fidgpt.interop import gpt2"),
    (
        "src/fidgpt/train/a.py",
        "class A:\n    packages = ('aim',)\n    def f(self):\n        import aim",
    ),
    ("src/fidgpt/graph/a.py", "def f():\n    from torch import dtype"),
]


@pytest.mark.parametrize(("path", "source"), FORBIDDEN)
def test_a_forbidden_import_is_caught(path: str, source: str) -> None:
    (problem,) = broken_rules(path, source)
    assert problem.startswith(f"{path}:{len(source.splitlines())}: ")


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_an_allowed_import_passes(path: str, source: str) -> None:
    assert broken_rules(path, source) == []


@pytest.mark.xdist_group("layout")
def test_groups_of_tests_reach_the_scheduler(request: pytest.FixtureRequest) -> None:
    """It reads them from the end of a test's id: without it, each worker makes all fixtures."""
    is_grouped = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@layout") == is_grouped

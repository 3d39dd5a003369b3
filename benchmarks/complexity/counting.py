"""How many lines differ between two states of a folder, in files that both of them have."""

import ast
import difflib
from dataclasses import dataclass
from pathlib import Path

Tree = dict[str, str]  # texts by path


@dataclass(frozen=True)
class Count:
    """What a feature costs.

    Attributes:
      changed: lines added to and taken from files that existed.
      written: logical lines that a user writes to switch it on in all variants.
      new: logical lines of the files that came with it.
    """

    changed: int
    written: int
    new: int


def changed_lines(before: Tree, after: Tree) -> int:
    """Lines added and taken, over the files that both trees have.

    Raises:
      ValueError: a file was taken away, which this does not count.
    """
    if gone := before.keys() - after.keys():
        raise ValueError(f"{', '.join(sorted(gone))} is gone; a feature adds.")
    total = 0
    for path, text in before.items():
        lines = difflib.ndiff(text.splitlines(), after[path].splitlines())
        total += sum(line[0] in "+-" for line in lines)
    return total


def new_lines(before: Tree, after: Tree) -> int:
    """Logical lines of the files that only the second tree has."""
    return sum(logical_lines(text) for path, text in after.items() if path not in before)


def logical_lines(source: str) -> int:
    """Statements of a Python source: what is left when layout, comments and docstrings go."""
    tree = ast.parse(source)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return sum(not _is_docstring(node) for node in statements)


def write(tree: Tree, folder: Path) -> None:
    """The files of a tree, below a folder."""
    for path, text in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )

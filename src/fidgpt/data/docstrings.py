"""Conversations about Python's standard library, made of docstrings that every machine has."""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from fidgpt.data.sources import StandardLibrary
from fidgpt.files import write_whole

__all__ = ["write_conversations"]

_MOST_LETTERS = 160


def write_conversations(path: Path) -> int:
    """Write a conversation for each function and class with a docstring, as JSON lines.

    Returns:
      How many there are.
    """
    lines = [
        json.dumps(
            {"prompt": f"What does {name} do?", "completion": f"{sentence.rstrip('.')}."},
            ensure_ascii=False,
        )
        for text in StandardLibrary().documents()
        for name, sentence in _sentences(text)
    ]
    write_whole(path, "".join(f"{line}\n" for line in dict.fromkeys(lines)))
    return len(lines)


def _sentences(text: str) -> Iterator[tuple[str, str]]:
    """Yield names of functions and classes, and the first lines of their docstrings."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            first = (ast.get_docstring(node) or "").strip().partition("\n")[0].strip()
            if " " in first and len(first) <= _MOST_LETTERS:
                yield node.name, first


if __name__ == "__main__":
    print(f"{write_conversations(Path(sys.argv[1])):,} conversations")

"""Style and types: ruff and basedpyright report no problem in the checkout."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
TOOLS = {
    "lint": ["ruff", "check", "--output-format=concise", "--no-cache"],
    "format": ["ruff", "format", "--check", "--no-cache"],
    "types": ["basedpyright", "--pythonpath", sys.executable],
}


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    program = str(BIN / command[0])
    return subprocess.run(
        [program, *command[1:]], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", TOOLS.values(), ids=TOOLS)
def test_tools_report_nothing(command: list[str]) -> None:
    result = run(*command)
    if result.returncode != 0:
        report = f"{result.stdout}\n{result.stderr}".strip()
        pytest.fail(f"{command[0]} reports problems.\n{report}", pytrace=False)


def test_the_linter_knows_the_short_names(tmp_path: Path) -> None:
    source = tmp_path / "wrong.py"
    source.write_text('"""A file."""\n\nimport tags\n\nprint(tags)\n', encoding="utf-8")
    result = run(
        "ruff", "check", "--no-cache", "--config", str(ROOT / "pyproject.toml"), str(source)
    )
    assert result.returncode == 1
    assert "TID251" in result.stdout and "fidgpt.tags" in result.stdout

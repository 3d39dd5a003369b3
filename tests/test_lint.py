"""Style: ruff reports no problem in the checkout; long tests check all types with it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
TOOLS = {
    "lint": ["ruff", "check", "--output-format=concise", "--no-cache"],
    "format": ["ruff", "format", "--check", "--no-cache"],
}
TYPES = ["basedpyright", "--pythonpath", sys.executable]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        *(pytest.param(command, id=name) for name, command in TOOLS.items()),
        pytest.param(TYPES, id="types of tests and benchmarks too", marks=pytest.mark.long),
    ],
)
def test_tools_report_nothing(command: list[str]) -> None:
    command = [str(BIN / command[0]), *command[1:]]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        report = f"{result.stdout}\n{result.stderr}".strip()
        pytest.fail(f"{command[0]} reports problems.\n{report}", pytrace=False)

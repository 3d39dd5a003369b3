"""What asks and does not run loads nothing heavy: --help, --list, completion."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "fiddle", "numpy", "libcst", "beartype", "jaxtyping", "tokenizers", "rich"}
LIGHT = {
    "--help of train": ["fidgpt.cli.train", "--help"],
    "--help of sweep": ["fidgpt.cli.sweep", "--help"],
    "--list": ["fidgpt.cli.train", "--list"],
    "--list of knobs": ["fidgpt.cli.train", "--list=knobs", "--config=config:base"],
    "--completion": ["fidgpt.cli.train", "--completion=bash"],
    "completion of paths": ["fidgpt.cli.completion", "fish", "fidgpt-train --config=set:model."],
}
COMMAND = """
import runpy, sys
del sys.argv[0]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code, end.code
"""
FIRST_STEP = """
import sys
from fidgpt.cli import train
from fidgpt.train import Console

def log(self, row):
    print(*sys.modules)
    sys.exit()

Console.log = log
sys.argv = ["train", "--config=config:debug", "--run_dir=" + sys.argv[1]]
train.run()
"""


def modules_after(code: str, *arguments: str) -> set[str]:
    """The modules that are loaded once some code has run, which prints something at most."""
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("command", LIGHT.values(), ids=LIGHT)
@pytest.mark.usefixtures("index_for")
def test_nothing_heavy_is_loaded(command: list[str]) -> None:
    assert not modules_after(COMMAND, *command) & HEAVY


def test_the_measure_sees_what_is_loaded() -> None:
    modules = modules_after(COMMAND, "fidgpt.cli.train", "--config=config:debug", "--print")
    assert modules >= {"torch", "fiddle"}
    assert not modules & {"yaml", "rich", "fidgpt.interop.levanter"}


def test_graphs_and_directives_are_read_without_torch() -> None:
    loaded = modules_after("import fidgpt.graph, fidgpt.compose.directives, fidgpt.compose.report")
    assert not loaded & {"torch", "beartype"}


def test_what_takes_seconds_is_not_loaded_before_the_first_step_ends(tmp_path: Path) -> None:
    modules = modules_after(FIRST_STEP, str(tmp_path / "run"))
    late = {"torch._dynamo", "torch._inductor", "sympy", "torch.distributed.checkpoint"}
    late |= {"torch.utils.tensorboard", "matplotlib", "transformers", "datasets", "pandas"}
    assert "fidgpt.train.trainer" in modules
    assert not modules & late

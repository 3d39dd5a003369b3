"""What asks and does not run loads nothing heavy: --help, --list, completion."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "fiddle", "numpy", "libcst", "beartype", "jaxtyping", "tokenizers", "rich"}
BASE = "--config=config:base"
ASKED = {
    "--help of train": ["fidgpt.cli.train", "--help"],
    "--help of a config": ["fidgpt.cli.train", BASE, "--help"],
    "--help of sweep": ["fidgpt.cli.sweep", "--help"],
    "--help of sample": ["fidgpt.sample", "--help"],
    "--list": ["fidgpt.cli.train", "--list"],
    "--list of configs": ["fidgpt.cli.train", "--list=configs"],
    "--list of parts that fit": ["fidgpt.cli.sweep", "--list=parts:model.norm"],
    "--list of knobs": ["fidgpt.cli.train", "--list=knobs", BASE],
    "--completion": ["fidgpt.cli.train", "--completion=bash"],
    "completion of names": ["fidgpt.cli.completion", "zsh", "fidgpt-train --config=fiddler:"],
    "completion of paths": ["fidgpt.cli.completion", "fish", "fidgpt-train --config=set:model."],
}
RUN = """
import json, runpy, sys
module, *arguments = json.loads(sys.argv[1])
sys.argv = [module, *arguments]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def loaded(*command: str) -> set[str]:
    """The packages that a command had loaded when it ended."""
    return {name.partition(".")[0] for name in modules_of(*command)}


def modules_of(*command: str) -> set[str]:
    """The modules that a command had loaded, with nothing said beside its answer."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip()
    (modules,) = done.stderr.splitlines()
    return set(json.loads(modules))


@pytest.mark.parametrize("command", ASKED.values(), ids=ASKED)
@pytest.mark.usefixtures("index_for")
def test_nothing_heavy_is_loaded(command: list[str]) -> None:
    assert not loaded(*command) & HEAVY


def test_nor_where_no_index_was_ever_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path))
    assert not loaded("fidgpt.cli.train", "--list=configs") & HEAVY
    assert len(list(tmp_path.glob("index-*.json"))) == 1


def test_the_measure_sees_what_is_loaded() -> None:
    modules = modules_of("fidgpt.cli.train", "--config=config:debug", "--print")
    assert modules >= {"torch", "fiddle"}
    unused = ("yaml", "rich")
    assert not modules & {*unused, "fidgpt.interop.levanter"}


def modules_after(code: str) -> set[str]:
    """The modules that are loaded once some code has run."""
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_a_graph_is_made_without_torch() -> None:
    assert not modules_after("import fidgpt.graph") & {"torch", "beartype"}


def test_directives_are_read_without_torch() -> None:
    assert "torch" not in modules_after("import fidgpt.compose.directives, fidgpt.compose.report")


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


def test_what_takes_seconds_to_load_is_not_loaded_before_the_first_step_ends(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STEP, str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    modules = set(done.stdout.splitlines()[-1].split())
    late = {"torch._dynamo", "torch._inductor", "sympy", "torch.distributed.checkpoint"}
    late |= {"torch.utils.tensorboard", "matplotlib", "transformers", "datasets", "pandas"}
    assert "fidgpt.train.trainer" in modules
    assert not modules & late

"""The command `train.py`: its flags, mistakes in a few lines, its output, what a run records."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Python

from fidgpt.cli import sample, train
from fidgpt.configs import debug
from fidgpt.graph import outline
from fidgpt.runs import directories
from fidgpt.train.trackers.trackers import read_rows

from .conftest import Command

DEBUG = "--config=config:debug"
QUICK = (DEBUG, "--config=set:num_steps=2", "--config=set:samples=None")
ROOT = Path(__file__).parents[2]


def test_what_shows_trains_nothing(
    command: Command, run_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(train.main, DEBUG, "--print=true") == (0, outline(debug()), "")
    before = sorted(tmp_path.rglob("*"))
    out = command(train.main, f"--resume={run_directory}", "--print").out
    assert out.startswith("Trainer\n  vocab_size: 257\n")
    assert command(train.main, f"--resume={run_directory}", "--dry_run").status == 0
    monkeypatch.chdir(tmp_path)
    status, out, _ = command(train.main, DEBUG, "--print", "--noprint", "--dry_run")
    assert status == 0 and "embedding.weight = unembedding.weight" in out
    flags = ["--print=flat", "--why=seed", "--diff=base", "--repro"]
    assert command(train.main, DEBUG, *flags).status == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_is_repeated_from_its_directory(command: Command, run_directory: Path) -> None:
    again = run_directory.with_name("again")
    assert shlex.split((run_directory / "command.txt").read_text())[0] == sys.executable
    flags = (f"--config=config_file:{run_directory}/config.json", f"--run_dir={again}")
    assert command(train.main, *flags).status == 0
    assert (again / "config.json").read_text() == (run_directory / "config.json").read_text()
    one, two = (read_rows(path / "metrics.jsonl") for path in (run_directory, again))
    assert [row["loss"] for row in one] == [row["loss"] for row in two] and len(one) == 2


@pytest.mark.slow
def test_a_flag_file_is_overridden_and_debug_shows_where(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("--run_dir=written\n")
    out = command(train.main, f"--flagfile={file}", DEBUG, "--run_dir=typed", "--dry_run").out
    assert "typed" in out and "written" not in out
    assert "Traceback" in command(train.main, "--config=set:nope=1", "--debug").err


@pytest.mark.slow
def test_in_a_shell_a_mistake_ends_with_status_two_and_a_reader_may_stop(tmp_path: Path) -> None:
    here, err, out = tmp_path / "here", tmp_path / "err", tmp_path / "out"
    here.mkdir()
    wrong = Python(
        ROOT / "train.py",
        "--config=fiddler:make_lage",
        output=err,
        printed=out,
        directory=here,
    )
    assert wrong.end(seconds=60) == 2 and out.read_text() == ""
    assert wrong.output.startswith("error: directive 1 is wrong:")
    assert list(here.iterdir()) == []
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    line = [sys.executable, str(ROOT / "train.py"), DEBUG, "--print=json"]
    with subprocess.Popen(line, **pipes) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


ALLOW = "--allow=site_of_mine"
USE = "--config=use:schedule=site_of_mine.Flat()"


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A package of the user's own that has to be allowed."""
    code = "class Flat:\n    def __call__(self, step: int) -> float:\n        return 1.0\n"
    (tmp_path / "site_of_mine.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("site_of_mine", None)


@pytest.mark.slow
@pytest.mark.usefixtures("allowed")
def test_printed_commands_allow_the_packages_of_the_run(command: Command, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    done = command(train.main, *QUICK, ALLOW, USE, f"--run_dir={run}")
    assert done.status == 0, done.err
    (hint,) = re.findall("python -m fidgpt.sample (.+)", done.out)
    assert shlex.split(hint) == [ALLOW, run]
    assert command(sample.main, *shlex.split(hint), "--num_tokens=2").status == 0
    refused = command(train.main, *QUICK, f"--run_dir={run}")
    (hint,) = re.findall(r"resume (?:it )?with (.+)\.", refused.err)
    assert shlex.split(hint) == [ALLOW, f"--resume={run}"]
    assert command(train.main, *shlex.split(hint)).status == 0
    out = command(train.main, ALLOW, *QUICK, USE, "--repro").out
    program, *flags = shlex.split(out)[1:]
    assert (program, flags[0]) == ("train.py", ALLOW)
    assert command(train.main, *flags, "--print").status == 0


def test_what_another_machine_needs_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TORCH_API_KEY", "hush")
    monkeypatch.setenv("HOME_SWEET", "no")
    found: Any = directories.surroundings()
    assert json.loads(json.dumps(found)) == found
    assert {"time", "python", "platform", "working_directory", "threads", "git"} <= found.keys()
    packages, hardware = found["packages"], found["hardware"]
    assert packages["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert {"fidgpt", "safetensors", "fiddle"} <= packages.keys() and len(packages) > 10
    assert hardware["processor"] and hardware["memory_bytes"] > 2**28
    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    assert not {"TORCH_API_KEY", "HOME_SWEET"} & found["variables"].keys()


def test_the_patch_makes_the_code_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*command: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *command], cwd=tmp_path, check=True, capture_output=True)

    file = tmp_path / "code.py"
    monkeypatch.setattr(directories, "__file__", str(file))
    assert directories.uncommitted() is None  # no checkout
    git("init")
    file.write_text("one\n\n")
    git("add", ".")
    git("commit", "-m", "first")
    assert directories.uncommitted() is None  # nothing changed
    file.write_text("one\ntwo é\n\n \n")
    (tmp_path / "x.patch").write_text(str(directories.uncommitted()))
    git("checkout", ".")
    git("apply", "x.patch")
    assert file.read_text() == "one\ntwo é\n\n \n"

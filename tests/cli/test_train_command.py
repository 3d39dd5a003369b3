"""The command `train.py`: its flags, mistakes in a few lines, its output, what a run records."""

import json
import os
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

from fidgpt.cli import app, sample, train
from fidgpt.configs import debug
from fidgpt.graph import ConfigError, dump, outline
from fidgpt.runs import environment
from fidgpt.train import RunError
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


@pytest.mark.parametrize(
    ("error", "rank", "agent", "is_printed", "waits"),
    [
        (RunError("no disk"), "0", False, True, False),
        (RunError("no disk"), "1", False, True, False),  # which only this process may have found
        (ConfigError("no size"), "1", False, False, True),
        (ConfigError("no size"), "1", True, True, True),  # torchrun has not ended it meanwhile
    ],
)
def test_an_error_of_all_processes_is_printed_by_the_first(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    rank: str,
    agent: bool,
    is_printed: bool,
    waits: bool,
) -> None:
    def main(arguments: list[str]) -> None:
        raise error

    slept: list[float] = []
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, rank)
    if agent:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setattr(app.time, "sleep", slept.append)
    outcome = command(main)
    assert (outcome.status, bool(slept)) == (app.MISTAKE, waits)
    assert outcome.err == (f"error: {error}\n" if is_printed else "")


def test_a_run_is_repeated_from_its_directory(command: Command, run_directory: Path) -> None:
    again = run_directory.with_name("again")
    assert shlex.split((run_directory / "command.txt").read_text())[0] == sys.executable
    flags = (f"--config=config_file:{run_directory}/config.json", f"--run_dir={again}")
    assert command(train.main, *flags).status == 0
    assert (again / "config.json").read_text() == (run_directory / "config.json").read_text()
    one, two = (read_rows(path / "metrics.jsonl") for path in (run_directory, again))
    assert [row["loss"] for row in one] == [row["loss"] for row in two] and len(one) == 2


def test_a_config_that_could_not_be_read_back_does_not_start(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_a_part_of_mine() -> Any:
        cfg = debug()
        cfg.weights = with_a_part_of_mine
        return cfg

    monkeypatch.setattr("fidgpt.configs.debug", with_a_part_of_mine)
    monkeypatch.setattr(f"{__name__}.with_a_part_of_mine", with_a_part_of_mine, raising=False)
    with_a_part_of_mine.__qualname__ = "with_a_part_of_mine"
    status, _, err = command(train.main, DEBUG, f"--run_dir={tmp_path / 'run'}")
    assert status == 2
    assert "is refused: a config file may name what fidgpt exports" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model.hidden_dim=5"], "error: there is no flag --model.hidden_dim."),
        (["--nosuch", "--", "--seed"], "error: there is no flag --nosuch."),
        (["--resume_step=x"], "error: --resume_step=x: invalid literal for int()"),
        (["--until_step=0"], "error: --until_step=0: 0 is not a positive integer"),
        (["--config=“set:seed=1", "a”"], "error: there is no config, fiddler, file or run 'a”'."),
        (["--print=toml"], "error: --print=toml: value should be one of "),
        (["--config"], "error: Missing value for flag --config"),
        (["--config="], "error: directive 1 is wrong:\n  --config=\n           ^\n  there is no"),
        (["--resume=x", "--run_dir=y"], "error: --resume=x holds no run, and is no copy of one"),
        (["--hardware=h100x8"], "error: --hardware=h100x8 changes nothing"),
        (["--diff_form=patch"], "error: --diff_form sets how --diff is shown: name with --diff"),
        (["--resume_step=5"], "error: --resume_step sets where to resume: it needs --resume="),
        (["--resume=gs://bucket/run"], "error: --resume=gs://bucket/run is a copy of a run: name "),
    ],
)  # fmt: skip
def test_mistakes(command: Command, flags: list[str], message: str) -> None:
    status, out, err = command(train.main, *flags)
    assert (status, out) == (2, "")
    assert err.startswith(message)
    assert len(err.splitlines()) <= 6 and "Traceback" not in err


@pytest.mark.slow
def test_a_flag_file_is_overridden_and_debug_shows_where(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("--run_dir=written\n")
    out = command(train.main, f"--flagfile={file}", DEBUG, "--run_dir=typed", "--dry_run").out
    assert "typed" in out and "written" not in out
    assert "Traceback" in command(train.main, "--config=set:nope=1", "--debug").err


def test_sample_names_its_mistakes(command: Command, tmp_path: Path) -> None:
    assert "name one directory, of a run or of the hub" in command(sample.main).err
    assert "holds no run" in command(sample.main, str(tmp_path)).err
    (tmp_path / "config.json").write_text(dump(debug()).replace("fidgpt.train:", "os:"))
    status, _, err = command(sample.main, str(tmp_path))
    assert status == 2 and "is refused" in err


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


@pytest.mark.usefixtures("allowed")
def test_a_run_resumed_with_a_package_names_it(command: Command, run_directory: Path) -> None:
    assert not (run_directory / "flags.txt").exists()
    resume = (ALLOW, f"--resume={run_directory}")
    done = command(train.main, *resume, "--config=set:num_steps=3", USE)
    assert done.status == 0, done.err
    assert f"fidgpt.sample {ALLOW} {run_directory}" in done.out
    assert command(train.main, *resume).status == 0


def test_a_reader_that_has_gone_is_no_error(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        done = command(lambda _: print("a page\n" * 10_000))
    assert (done.status, done.err) == (0, "")


def test_what_another_machine_needs_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TORCH_API_KEY", "hush")
    monkeypatch.setenv("HOME_SWEET", "no")
    found: Any = environment.record()
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
    monkeypatch.setattr(environment, "__file__", str(file))
    assert environment.patch() is None  # no checkout
    git("init")
    file.write_text("one\n\n")
    git("add", ".")
    git("commit", "-m", "first")
    assert environment.patch() is None  # nothing changed
    file.write_text("one\ntwo é\n\n \n")
    (tmp_path / "x.patch").write_text(str(environment.patch()))
    git("checkout", ".")
    git("apply", "x.patch")
    assert file.read_text() == "one\ntwo é\n\n \n"

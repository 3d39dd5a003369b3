"""The command `train.py`: what its flags do, and that a mistake ends in a few lines."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import sample, train
from fidgpt.configs import debug
from fidgpt.graph import dump, outline
from fidgpt.train.trackers.trackers import read_rows

DEBUG = "--config=config:debug"
QUICK = (
    DEBUG,
    "--config=fiddler:smoke_test(2)",
    "--config=set:trackers=[]",
    "--config=set:samples=None",
)
ROOT = Path(__file__).parents[2]
Command = Callable[..., Any]


def train_two_steps(command: Command, path: Path, *more: str) -> Any:
    flags = [flag for flag in QUICK if "trackers" not in flag]
    return command(train.main, *flags, f"--run_dir={path}", *more)


class TestPrint:
    """`--print` shows what would run, and does nothing else."""

    @pytest.mark.parametrize("flag", ["--print", "--print=text", "--print=true"])
    def test_as_text(self, command: Command, flag: str) -> None:
        assert command(train.main, DEBUG, flag) == (0, outline(debug()), "")

    def test_not_after_all(self, command: Command, tmp_path: Path) -> None:
        assert train_two_steps(command, tmp_path / "run", "--print", "--noprint").status == 0
        assert (tmp_path / "run" / "metrics.jsonl").exists()

    def test_of_a_run_trains_nothing(self, command: Command, tmp_path: Path) -> None:
        path = tmp_path / "run"
        train_two_steps(command, path)
        before = sorted(path.rglob("*"))
        status, out, _ = command(train.main, f"--resume={path}", "--print")
        assert status == 0
        assert out.startswith("Trainer\n  vocab_size: 257\n")
        assert command(train.main, f"--resume={path}", "--dry_run").status == 0
        assert sorted(path.rglob("*")) == before


def test_dry_run_counts_and_writes_nothing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = command(train.main, DEBUG, "--dry_run")
    assert status == 0
    assert "embedding.weight = unembedding.weight" in out
    assert list(tmp_path.iterdir()) == []


def test_a_run_can_be_done_again_from_its_directory(command: Command, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert train_two_steps(command, one).status == 0
    assert shlex.split((one / "command.txt").read_text())[0] == sys.executable
    again = command(train.main, f"--config=config_file:{one / 'config.json'}", f"--run_dir={two}")
    assert again.status == 0
    assert (two / "config.json").read_text() == (one / "config.json").read_text()
    losses = [[row["loss"] for row in read_rows(path / "metrics.jsonl")] for path in (one, two)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2


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
        (["--model.hidden_dim=5"], "error: Unknown command line flag 'model.hidden_dim'"),
        (["--resume_step=x"], "error: flag --resume_step=x: invalid literal for int()"),
        (["--run_dir=a", "--run_dir=b"], "error: flag --run_dir=b: already defined as a\n  It "),
        (["--print=toml"], "error: flag --print=toml: value should be one of "),
        (["--config"], "error: Missing value for flag --config"),
        (["--config="], "error: directive 1 is wrong:\n  --config=\n           ^\n  there is no"),
        (["--resume=x", "--run_dir=y"], "error: --resume=x holds no run, and is no copy of one"),
        (["--hardware=h100x8"], "error: --hardware=h100x8 changes nothing"),
        (["--diff_form=patch"], "error: --diff_form sets how --diff is shown: name with --diff"),
        (["--resume_step=5"], "error: --resume_step sets where to resume: it needs --resume="),
    ],
)
def test_mistakes(command: Command, flags: list[str], message: str) -> None:
    status, out, err = command(train.main, *flags)
    assert (status, out) == (2, "")
    assert err.startswith(message)
    assert len(err.splitlines()) <= 6
    assert "Traceback" not in err


def test_a_file_of_flags_may_be_overruled(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("--run_dir=written\n")
    out = command(train.main, f"--flagfile={file}", DEBUG, "--run_dir=typed", "--dry_run").out
    assert "typed" in out and "written" not in out


def test_debug_shows_where(command: Command) -> None:
    err = command(train.main, "--config=set:nope=1", "--debug").err
    assert "Traceback" in err
    assert err.endswith("There is none.\n") or "has no parameter 'nope'" in err


def test_sample_names_its_mistakes(command: Command, tmp_path: Path) -> None:
    assert "name one directory, of a run or of the hub" in command(sample.main).err
    assert "holds no run" in command(sample.main, str(tmp_path)).err
    (tmp_path / "config.json").write_text(dump(debug()).replace("fidgpt.train:", "os:"))
    status, _, err = command(sample.main, str(tmp_path))
    assert status == 2
    assert "is refused" in err


def shell(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_in_a_shell_a_mistake_ends_with_status_two(tmp_path: Path) -> None:
    done = shell(str(ROOT / "train.py"), "--config=fiddler:make_lage", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: directive 1 is wrong:")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_may_stop_reading() -> None:
    command = [sys.executable, str(ROOT / "train.py"), DEBUG, "--print=json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("flag", ["resume", "run_dir", "hardware"])
def test_a_flag_that_a_shell_left_empty_is_no_flag_left_out(command: Command, flag: str) -> None:
    status, _, err = command(train.main, "--config=config:debug", f"--{flag}=")
    assert (status, err.split(":")[1].strip()) == (2, f"--{flag}= names nothing")

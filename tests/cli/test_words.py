"""Words without a flag: which directives they mean, in their places among the flags."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from fidgpt.cli import completion, train
from fidgpt.cli.words import meanings, with_flags
from fidgpt.compose.reproduction import train_command
from fidgpt.graph import load

from .conftest import Command

pytestmark = pytest.mark.usefixtures("index_for")


def translated(line: str) -> str:
    return shlex.join(with_flags(shlex.split(line), flags.FLAGS))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("base", "--config=config:base"),
        ("make_large", "--config=fiddler:make_large"),
        ("'use_gqa(num_kv_heads=2)'", "'--config=fiddler:use_gqa(num_kv_heads=2)'"),
        ("model.hidden_dim=8", "--config=set:model.hidden_dim=8"),
        ("'blocks[0].window=4'", "'--config=set:blocks[0].window=4'"),
        ("LearningRate=1e-3", "--config=tag:LearningRate=1e-3"),
        ("more.yaml", "--config=yaml:more.yaml"),
        ("lr=1e-3,3e-3", "--sweep=set:lr=1e-3,3e-3"),
        ("'use_rope,use_gqa(num_heads=2)'", "'--sweep=fiddler:use_rope,use_gqa(num_heads=2)'"),
        ("--search=tpe:3 lr=1,2", "--search=tpe:3 --space=set:lr=1,2"),
        ("debug --dry_run seed=1", "--config=config:debug --dry_run --config=set:seed=1"),
        ("--run_dir base --nodry_run base", "--run_dir base --nodry_run --config=config:base"),
        ("base -- base", "--config=config:base -- base"),
    ],
)  # fmt: skip
def test_what_words_mean(line: str, expected: str) -> None:
    assert translated(line) == expected


def test_a_run_is_a_word_and_says_what_words_meant(command: Command, run_directory: Path) -> None:
    status, out, err = command(train.main, str(run_directory), "seed=7", "--print=json")
    assert status == 0 and json.loads(out)
    assert err.splitlines()[0] == f"{run_directory}: --config=config_file:{run_directory}"
    assert err.splitlines()[1] == "seed=7: --config=set:seed=7"


def test_words_make_the_graph_and_the_record_of_flags(command: Command, tmp_path: Path) -> None:
    words = ["debug", "num_steps=1", "LearningRate=2e-3", "samples=None", "use_alibi"]
    meant = with_flags(words, flags.FLAGS)
    assert meanings(words, meant)[-1] == "use_alibi: --config=fiddler:use_alibi"
    assert command(train.main, *words, f"--run_dir={tmp_path}/run").status == 0
    recorded = shlex.split((tmp_path / "run/command.txt").read_text())
    assert recorded[2:-1] == meant
    _, printed, _ = command(train.main, *meant, "--print=json")
    assert command(train.main, *words, "--print=json").out == printed


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fidgpt tr", ["train"]),
        ("fidgpt train debu", ["debug"]),
        ("python -m fidgpt sweep debug LearningR", ["LearningRate="]),
        ("fidgpt-train debug optimizer.l", ["optimizer.lr="]),
    ],
)
def test_words_are_completed(line: str, expected: list[str]) -> None:
    words, typed, _ = completion.split_line(line)
    assert list(completion.candidates(words, typed)) == expected


def test_one_program_has_all_commands(tmp_path: Path) -> None:
    def fidgpt(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fidgpt", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    assert fidgpt("--version").stdout.startswith("fidgpt 0.")
    assert "fidgpt sweep" in fidgpt().stdout
    wrong = fidgpt("tarin")
    assert wrong.returncode == 2 and "there is no command 'tarin'" in wrong.stderr
    shown = fidgpt("train", "debug", "seed=3", "--print=json")
    assert shown.returncode == 0, shown.stderr
    assert load(shown.stdout).seed == 3


def test_the_reader_of_a_pipe_may_leave() -> None:
    line = f"({shlex.quote(sys.executable)} -m fidgpt; true) | (exec 0<&-; true)"
    assert subprocess.run(["sh", "-c", line], capture_output=True, check=True).stderr == b""


def test_an_installed_command_names_installed_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert train_command(["config:debug"]) == "python train.py --config=config:debug"
    monkeypatch.setattr("sys.argv", ["/usr/bin/fidgpt-report"])
    assert train_command(["config:debug"]) == "fidgpt train --config=config:debug"

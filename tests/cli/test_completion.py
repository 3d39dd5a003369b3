"""Completion: what may follow each kind of word, and what shells make of it."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fidgpt.cli.completion import candidates, main, script, split_line
from fidgpt.compose.directives import DIRECTIVES

ROOT = Path(__file__).parents[2]
BREAKS = " \t\n\"'><=;|&(:"  # bash's own
pytestmark = pytest.mark.usefixtures("index_for")


def follow(line: str, program: str = "fidgpt-train") -> list[str]:
    """The words that the last one of a line may become."""
    words, typed, _ = split_line(f"{program} {line}")
    return list(candidates(words, typed))


def test_which_lines_run_a_command(tmp_path: Path) -> None:
    for line in (
        "/usr/bin/fidgpt-sweep",
        "cd x; A=1 python -u -m fidgpt.sample",
        "python -m fidgpt.cli.export",
        f"torchrun --nproc_per_node 2 {shlex.quote(f'{ROOT}/sweep.py')}",
    ):
        assert follow("--deb", line) == ["--debug"]
    (tmp_path / "train.py").write_text("import another")
    for line in ("python", "python x.py", f"python {tmp_path}/train.py", "python train.py.bak"):
        assert follow("--", line) == []


MLP = "set:model.blocks[0].mlp"
COMPLETED = {
    "--pri": ["--price=", "--print", "--print="],
    "--config=": [f"--config={kind}:" for kind in DIRECTIVES],
    "--config=config:gpt2_12": ["--config=config:gpt2_124m"],
    f"--config {MLP}.b": [f"{MLP}.bias="],
    "--config set:model.blo": ["set:model.blocks["],
    f"--config {MLP[:-3]}": [f"{MLP[:-3]}{name}" for name in (
        "dropout=", "branch_scale=", "attention_norm.", "attention.", "mlp_norm.", "mlp.")],
    "--config use:schedule.w": ["use:schedule.warmup_steps=", "use:schedule.warmup_steps."],
    "--config del:optimizer.be": ["del:optimizer.betas"],
    "--config tie:model.unembedding.w": ["tie:model.unembedding.weight="],
    "--list=parts:pre": ["--list=parts:precision", "--list=parts:prefetch"],
    "--why=optimizer.l": ["--why=optimizer.lr"],
    "--config config:nope --config set:model.": [],
}  # fmt: skip


@pytest.mark.parametrize("line", COMPLETED)
def test_what_may_follow(line: str) -> None:
    assert sorted(follow(line)) == sorted(COMPLETED[line])


def test_an_axis_of_a_sweep_has_several_names() -> None:
    assert follow("--sweep=config:base,deb", "fidgpt-sweep") == ["--sweep=config:base,debug"]


def test_files_and_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "two.json").touch()
    (tmp_path / ".hidden").touch()
    both = ["runs/one/", "runs/two.json"]
    assert follow("--config=config_file:") == ["--config=config_file:runs/"]
    assert follow("--diff=runs/") == [f"--diff={one}" for one in both]
    assert follow("--resume=runs/") == [f"--resume={one}" for one in both]
    assert follow("runs/", "fidgpt-sample") == both
    assert follow("--config patch:.h") == ["patch:.hidden"]
    assert follow("--resume=nowhere/") == []
    (tmp_path / "openlab").mkdir()
    (tmp_path / "openlab/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "openlab/widths.py").write_text(
        "class Heat: ...\ndef narrow(width: int = 3): ...\ndef _hidden(): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert follow("--config config:openlab.w") == ["config:openlab.widths."]
    assert follow("--config config:openlab.widths.") == ["config:openlab.widths.narrow"]
    assert follow("--config tag:openlab.widths.") == ["tag:openlab.widths.Heat="]
    assert follow("--config config:openlab.none.x") == follow("--config config:.") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--config=config:gpt2_12", ["gpt2_124m "]),
        ("--conf", ["--config="]),
        ("--config='config:gpt2_12", ["config:gpt2_124m"]),
        ("--config='tag:Learn", ["tag:LearningRate=", "tag:LearningRate=..."]),
    ],
)
def test_bash_replaces_what_follows_a_break_or_quote(
    line: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main("bash", f"fidgpt-train {line}", BREAKS)
    assert capsys.readouterr().out.splitlines() == expected


ASK = {
    "zsh": "compdef() { }\n%s\ncompadd() { print -rl -- ${(P)@[-1]} }\n"
    "LBUFFER=$LINE; _fidgpt_python",
    "fish": "%s\ncomplete -C $LINE",
}


@pytest.mark.parametrize("shell", ASK)
def test_zsh_and_fish_complete_by_their_script(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")

    def offered(line: str) -> list[str]:
        environment = os.environ | {"LINE": line}
        command = [shell, "-c", ASK[shell] % script(shell)]
        done = subprocess.check_output(command, cwd=ROOT, env=environment, text=True)
        return [one.partition("\t")[0] for one in done.splitlines()]

    found = offered("python train.py --config=config:gpt2_12")
    assert found == ["--config=config:gpt2_124m"]
    found = offered("python train.py '--config=set:model.blocks[0].mlp.")
    assert len(found) == 4
    assert all(one.startswith("--config=set:model.blocks[0].mlp.") for one in found)

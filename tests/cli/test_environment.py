"""Environment variables in directives, and secrets in runs."""

import io
import os
import sys
from pathlib import Path

import fiddle as fdl
import pytest
from forked import Python
from rich.console import Console

from fidgpt.cli import app, train
from fidgpt.compose.composition import compose
from fidgpt.compose.reproduction import remembered
from fidgpt.compose.sources import load_file
from fidgpt.graph import build
from fidgpt.runs.directories import new_run
from fidgpt.sweep import Point, Sweep, axis, jobs_of, results
from fidgpt.sweep.points import Cost
from fidgpt.sweep.runners.jobs import Ending

from .conftest import Command

ROOT = Path(__file__).parents[2]
VALUE = "hunter2-of-the-lab"


def test_a_variable_is_read_once_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUM", "2**5")
    made = compose(["config:debug", "set:num_steps=${env:NUM}", "set:seed=${env:UNSET_SEED, 7}"])
    monkeypatch.setenv("NUM", "40")
    assert (made.config.num_steps, made.config.seed) == (32, 7)
    assert (
        "32  set by directive 2: set:num_steps=${env:NUM}, here set:num_steps=2**5\n"
        in made.why("num_steps")
    )
    assert made.directives == ["config:debug", "set:num_steps=2**5", "set:seed= 7"]
    file = tmp_path / "mine.yaml"
    file.write_text("config: debug\nnum_steps: ${env:NUM}\nsamples.prompts: ['${oc.env:NUM}', a]\n")
    made = compose([f"yaml:{file}", "fiddler:use_gqa(num_kv_heads=${env:HEADS,1})"])
    assert made.config.num_steps == 40 and made.config.samples.prompts == ["40", "a"]
    sweep = Sweep(f"yaml:{file}", axis("set:seed=${env:NUM},${env:UNSET_SEED,1}"))
    assert [one.directives[-1] for one in sweep.points] == ["set:seed=40", "set:seed=1"]
    assert "set:num_steps=40" in sweep.points[0].directives


@pytest.mark.parametrize(
    ("directives", "base"),
    [
        (["config:${env:BASE}", "fiddler:smoke_test(3)", "set:model.hidden_dim=32"], "gpt2_124m"),
        (["set:num_steps=${env:NUM}", "fiddler:smoke_test(3)"], "base"),
    ],
)
def test_the_base_of_a_saved_run_is_the_one_that_it_began_with(
    directives: list[str],
    base: str,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("BASE", "gpt2_124m")
    monkeypatch.setenv("NUM", "5")
    run = tmp_path / "run"
    new_run(compose(directives).config, directives=directives, path=str(run)).create()
    for name in ("BASE", "NUM"):
        monkeypatch.delenv(name)
    file = f"--config=config_file:{run / 'config.json'}"
    out = command(train.main, file, "--print=base").out
    assert out.startswith(f"config:{base}, but\n")
    meant = [one.replace("${env:BASE}", base).replace("${env:NUM}", "5") for one in directives]
    assert remembered(load_file(str(run / "config.json"))) == meant


@pytest.mark.parametrize(
    "flag",
    ["--print", "--print=json", "--print=html", "--print=summary", "--repro", "--diff=debug"],
)
def test_what_is_printed_does_not_depend_on_the_value(
    flag: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, like = "${secret:LAB_KEY}", "abcdef"
    prompts = f"--config=set:samples.prompts=['{like}-and-more','{secret}']"

    monkeypatch.setattr(sys, "stdout", app.SafeStream(sys.stdout))

    def printed(value: str) -> str:
        monkeypatch.setenv("LAB_KEY", value)
        build(fdl.Config(dict, key=secret))  # or nothing may have read it
        return command(train.main, "--config=config:debug", prompts, flag).out

    assert VALUE not in (first := printed(VALUE))
    assert len(first) > 50 and printed(like) == first


def test_the_last_words_of_a_point_hold_no_secret_however_they_are_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_KEY", VALUE)
    build(fdl.Config(dict, key="${secret:LAB_KEY}"))
    point = Point((), "1" * 64, "a", Cost(1, 1, 1), {})
    jobs = jobs_of([point], tmp_path)
    results.ResultsTable(tmp_path, jobs).ended(jobs[0], Ending("failed", f"{VALUE} was refused"))
    rows = results.read_results(tmp_path)
    assert rows[0]["last_words"] == "${secret:LAB_KEY} was refused"
    console = Console(file=io.StringIO(), width=40)
    console.print(rows)
    assert VALUE[:8] not in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


LAB = '''
class Service:
    """A tracker that shows the key that it uses."""

    def __init__(self, key: str) -> None:
        self._key = key

    def start(self, run, facts, *, step: int) -> None:
        print("the key is", self._key, "of length", len(self._key))

    def log(self, row) -> None:
        raise RuntimeError(f"{self._key} was refused")

    def print(self, text: str) -> None:
        pass

    def finish(self) -> None:
        pass
'''


@pytest.mark.slow
def test_a_secret_is_in_no_file_and_no_print_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "lab_secret.py").write_text(LAB)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "LAB_KEY": VALUE}
    changes = [
        "set:trackers+=[lab_secret.Service(key=${secret:LAB_KEY})]",
        *("set:num_steps=1", "set:samples=None", "set:evaluators={}"),
    ]

    def ran(name: str, *flags: str, without: bool = False) -> tuple[int, str]:
        known = {k: v for k, v in environment.items() if not (without and k == "LAB_KEY")}
        process = Python(
            ROOT / "train.py",
            "--allow=lab_secret",
            *flags,
            output=tmp_path / name,
            directory=tmp_path,
            environment=known,
        )
        return process.end(seconds=60), process.output

    flags = ["--config=config:debug", *(f"--config={one}" for one in changes)]
    status, output = ran("out1", *flags, "--run_dir=run")
    assert status == 0, output
    assert f"the key is ${{secret:LAB_KEY}} of length {len(VALUE)}" in output
    assert "${secret:LAB_KEY} was refused" in output
    status, output = ran("out2", "--resume=run", "--config=set:num_steps=2")
    assert status == 0 and f"of length {len(VALUE)}" in output
    status, output = ran("out3", "--resume=run", "--config=set:num_steps=3", without=True)
    assert status == 2 and "export LAB_KEY=... on the machine that runs this." in output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if VALUE.encode() in path.read_bytes()]
    assert "${secret:LAB_KEY}" in (tmp_path / "run/config.json").read_text()

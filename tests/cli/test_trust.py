"""What a file or a run of another user may not do: send, run code, or have its flags advised."""

import json
import shutil
from pathlib import Path

import pytest

from fidgpt.cli import evaluate, train
from fidgpt.graph import load
from fidgpt.runs.building import risks
from fidgpt.train.run_directory import resume_flag

from .conftest import Command, Outcome

DEBUG = ("--config=config:debug", "--config=set:num_steps=2", "--config=set:samples=None")
SENDS = {
    'fiddler:mirror_checkpoints(url="memory://elsewhere/x")': "memory://elsewhere/x",
    'fiddler:use_mlflow(tracking_uri="http://elsewhere:5000")': "http://elsewhere:5000",
    'fiddler:use_trackio(space="another/space")': "another/space",
    'fiddler:use_wandb(entity="another")': "another",
    'fiddler:use_tasks(tasks=["lambada_openai"], include_path="./tasks")': "./tasks",
    'fiddler:use_tasks(tasks=["./task.yaml"])': "./task.yaml",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which no command has named anything yet."""
    monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def saved(command: Command, path: Path, *directives: str, form: str = "json") -> str:
    """The directive that loads a file, which another machine has written."""
    flags = [f"--config={one}" for one in directives]
    done = command(train.main, *DEBUG, *flags, f"--print={form}")
    assert done.status == 0, done.err
    path.write_text(done.out)
    return f"--config=config_file:{path}"


@pytest.mark.parametrize("fiddler", SENDS)
def test_a_file_cannot_name_a_place_that_no_command_has(
    fiddler: str, command: Command, tmp_path: Path
) -> None:
    file, place = saved(command, tmp_path / "c.json", fiddler), SENDS[fiddler]
    flags = (file, "--dry_run")
    done = command(train.main, *flags)
    assert done.status == 2 and f" {place!r}" in done.err
    assert f"add --trust={place}, which is remembered here" in done.err
    assert len(done.err.splitlines()) == 3
    done = command(train.main, *flags, f"--trust={place}")
    assert is_tried(done) and f" {place} (" in done.err
    done = command(train.main, *flags)
    assert is_tried(done) and f"this run {'runs' if 'task' in place else 'sends'} " in done.err


def is_tried(done: Outcome) -> bool:
    """Whether all is well, but for the package of a tracker or of tasks, which may be missing."""
    return done.status == 0 or "not installed" in done.err


def test_a_place_that_a_command_names_is_remembered(
    command: Command, tmp_path: Path, cache: Path
) -> None:
    fiddler = next(iter(SENDS))
    flags = (saved(command, tmp_path / "c.json", fiddler), "--dry_run")
    assert command(train.main, *flags).status == 2
    assert command(train.main, *flags, f"--config={fiddler}", "--allow_noop").status == 0
    assert command(train.main, *flags).status == 0
    shutil.rmtree(cache)
    assert command(train.main, *flags).status == 2


def test_a_patch_or_yaml_file_counts_as_a_file(command: Command, tmp_path: Path) -> None:
    fiddler = next(iter(SENDS))
    yaml = saved(command, tmp_path / "c.yaml", fiddler, form="yaml")
    assert command(train.main, yaml, "--dry_run").status == 2
    plain = saved(command, tmp_path / "plain.json").removeprefix("--config=")
    diff = f"--diff={plain}"
    mirror = f"--config={fiddler}"
    done = command(train.main, *DEBUG, mirror, diff, "--diff_form=patch")
    (tmp_path / "p.patch").write_text(done.out)
    done = command(train.main, *DEBUG, f"--config=patch:{tmp_path}/p.patch", "--dry_run")
    assert done.status == 2 and "memory://elsewhere/x" in done.err
    # A part of the name of another place names none.
    other = f"--config={fiddler.replace('/x', '/xy')}"
    done = command(train.main, *DEBUG, other, f"--config=patch:{tmp_path}/p.patch", "--dry_run")
    assert done.status == 2


@pytest.mark.slow
def test_a_run_that_was_begun_here_resumes_and_names_where_it_sends(
    command: Command, tmp_path: Path, cache: Path
) -> None:
    copy, run = f"file://{tmp_path}/copy", tmp_path / "run"
    mirror = f'--config=fiddler:mirror_checkpoints(url="{copy}")'
    flags = (*DEBUG, "--config=set:checkpoints.every=1", mirror, f"--run_dir={run}")
    assert command(train.main, *flags, "--until_step=1").status == 0
    done = command(train.main, f"--resume={run}")
    assert done.status == 0 and f"this run sends checkpoints to {copy}" in done.err
    shutil.rmtree(cache)
    done = command(train.main, f"--resume={run}", "--config=set:num_steps=3")
    assert done.status == 2 and f"--trust={copy}" in done.err
    again = (f"--resume={copy}", f"--run_dir={tmp_path}/again", "--config=set:num_steps=3")
    assert command(train.main, *again).status == 0  # the command names it


@pytest.mark.slow
def test_a_strangers_run_is_not_evaluated_with_tasks_of_its_own(
    command: Command, run_directory: Path
) -> None:
    tasks = next(one for one in SENDS if "include_path" in one)
    text = command(train.main, *DEBUG, f"--config={tasks}", "--print=json").out
    (run_directory / "config.json").write_text(text)
    done = command(evaluate.main, str(run_directory))
    assert done.status == 2 and "runs the tasks in './tasks'" in done.err


def test_what_is_computed_or_inherited_is_found_too(command: Command) -> None:
    text = command(train.main, *DEBUG, f"--config={next(iter(SENDS))}", "--print=json").out
    assert [one.value for one in risks(load(text))] == ["memory://elsewhere/x"]
    hidden = json.loads(text)
    [path] = [path for path, one in hidden["parts"].items() if "fidgpt.train:Mirror" in str(one)]
    hidden["parts"][path]["set"]["url"] = {"path": "/elsewhere"}
    assert [one.value for one in risks(load(json.dumps(hidden)))] == ["/elsewhere"]


@pytest.mark.parametrize("name", ["os", "subprocess", "builtins", "os.path"])
def test_no_module_of_python_is_allowed(name: str, command: Command) -> None:
    done = command(train.main, *DEBUG, f"--allow={name}", "--dry_run")
    assert done.status == 2 and f"--allow={name} would let a file run any command" in done.err


def test_flags_of_a_run_from_elsewhere_are_not_advised(command: Command, tmp_path: Path) -> None:
    (tmp_path / "flags.txt").write_text("--allow=lab\n--debug\n")
    assert resume_flag(tmp_path) == f"--resume={tmp_path}"
    command(train.main, *DEBUG, "--allow=lab", "--print")
    assert resume_flag(tmp_path) == f"--allow=lab --resume={tmp_path}"

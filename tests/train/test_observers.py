"""What looks on: traces of steps, a word where no snapshot can be, the end of a run that hangs."""

import errno
import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fiddle as fdl
import pytest

from fidgpt.compose.runs import build_trainer
from fidgpt.fiddlers import use_memory_snapshot, use_profiler, use_watchdog
from fidgpt.train import Profiler, RunDirectory, RunError, Watchdog
from fidgpt.train.trackers.trackers import read_rows


def losses(rows: list[dict]) -> list[float]:
    return [row["loss"] for row in rows]


def test_the_steps_that_were_asked_for_are_traced_and_change_nothing(cfg, train, tmp_path):
    cfg.num_steps = 4
    plain = train(cfg, "plain")
    use_profiler(cfg, begin=2, num_steps=2)
    assert losses(train(cfg)) == losses(plain)
    profile = tmp_path / "run" / "profile"
    assert sorted(path.name for path in profile.iterdir()) == ["rank0.json.gz", "rank0.txt"]
    events = json.loads(gzip.decompress((profile / "rank0.json.gz").read_bytes()))["traceEvents"]
    steps = [event for event in events if event.get("name", "").startswith("Optimizer.step")]
    assert len(steps) == 2
    assert "aten::" in (profile / "rank0.txt").read_text()


def test_a_run_that_ends_while_it_is_traced_leaves_what_there_is(cfg, train, tmp_path):
    cfg.num_steps = 3
    use_profiler(cfg, begin=3, num_steps=100)
    train(cfg)
    assert (tmp_path / "run" / "profile" / "rank0.json.gz").stat().st_size > 0


def test_a_snapshot_of_memory_needs_cuda_and_says_so_before_there_is_a_run(cfg, train, tmp_path):
    use_memory_snapshot(cfg)
    with pytest.raises(RunError, match="use_profiler"):
        train(cfg)
    assert not list(tmp_path.iterdir())


def test_a_watchdog_leaves_nothing_of_a_run_that_went_well(cfg, train, tmp_path):
    cfg.num_steps = 2
    use_watchdog(cfg)
    train(cfg)
    assert not (tmp_path / "run" / "stacks").exists()


@pytest.mark.parametrize("use", [use_profiler, use_watchdog])
def test_an_observer_that_cannot_write_says_so_and_the_run_goes_on(use, cfg, tmp_path, capsys):
    use(cfg)
    taken = {"profile": "a file, where a folder should be", "stacks": "and here too"}
    build_trainer(cfg).train(RunDirectory(tmp_path / "run", texts=taken))
    assert re.search(r"warning: .*(profile|stacks).*\(File exists\)", capsys.readouterr().err)
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == cfg.num_steps


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("export_chrome_trace", OSError(errno.ENOSPC, "No space left on device"), "No space left"),
        (
            "key_averages",
            UnicodeDecodeError("utf-8", b"\xf0", 0, 1, "no text"),
            "can't decode byte",
        ),
    ],
)
def test_a_trace_that_fails_is_said_and_the_run_goes_on(
    what, error, said, cfg, train, monkeypatch, capsys
):
    def fail(*_):
        raise error

    monkeypatch.setattr(f"torch.profiler.profile.{what}", fail)
    use_profiler(cfg, begin=1, num_steps=2)
    assert len(train(cfg)) == cfg.num_steps
    told = capsys.readouterr().err
    assert said in told
    assert told.count("): the run goes on") == 1


@pytest.mark.parametrize("use", [use_profiler, use_watchdog])
def test_a_run_whose_directory_goes_says_so_with_observers_too(
    use, cfg, train, tmp_path, monkeypatch
):
    sync = RunDirectory.sync

    def removed(run: RunDirectory) -> None:
        shutil.rmtree(run.path)
        sync(run)

    monkeypatch.setattr(RunDirectory, "sync", removed)
    use(cfg)
    with pytest.raises(RunError, match="is gone or cannot be written"):
        train(cfg)


HANGING = """
import threading
from pathlib import Path
from fidgpt.parallel import DataParallel
from fidgpt.train import RunDirectory, Watchdog

def step_that_never_ends():
    threading.Lock().acquire() and (lock := threading.Lock()).acquire() and lock.acquire()

run = RunDirectory(Path({path!r}), texts={{}})
watchdog = Watchdog(seconds=0.5, first_seconds=60)
with watchdog.observing(run, DataParallel()):
    with watchdog.stepping(1):
        pass
    with watchdog.stepping(2):
        step_that_never_ends()
"""


def test_a_step_that_hangs_ends_the_process_and_says_where(tmp_path: Path):
    path = tmp_path / "stacks" / "rank0.txt"
    told = f"{path} says where an earlier process hung, and so was ended by its watchdog.\n"
    for said in ("", told):  # the second time as after a restart
        done = subprocess.run(
            [sys.executable, "-c", HANGING.format(path=str(tmp_path))],
            timeout=100,
            check=False,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (1, said)
    stacks = path.read_text()
    assert stacks.count("in step_that_never_ends") == 2


STOPPED = """
import os, signal, subprocess, sys, time
from pathlib import Path
from fidgpt.parallel import DataParallel
from fidgpt.train import RunDirectory, Watchdog

run = RunDirectory(Path({path!r}), texts={{}})
watchdog = Watchdog(seconds=2.0, first_seconds=60)
wake = "import os, signal, time; input(); time.sleep(3); os.kill({{}}, signal.SIGCONT)"
waking = subprocess.Popen([sys.executable, "-c", wake.format(os.getpid())], stdin=subprocess.PIPE)
with watchdog.observing(run, DataParallel()):
    for step in (1, 2):
        with watchdog.stepping(step):
            pass
    waking.stdin.write(b"now\\n")
    waking.stdin.flush()
    os.kill(os.getpid(), signal.SIGTSTP)
    with watchdog.stepping(3):
        {then}
waking.communicate()
assert signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL
print("alive")
"""


@pytest.mark.parametrize(("then", "status"), [("pass", 0), ("time.sleep(60)", 1)])
def test_time_in_which_the_process_is_stopped_does_not_count(tmp_path: Path, then: str, status):
    script = STOPPED.format(path=str(tmp_path), then=then)
    done = subprocess.run(
        [sys.executable, "-c", script], timeout=100, check=False, capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    assert ("alive" in done.stdout) == (status == 0)


@pytest.mark.parametrize("part", [Profiler, Watchdog])
def test_numbers_below_one_are_refused(part):
    key, value = ("num_steps", 0) if part is Profiler else ("seconds", 0.0)
    with pytest.raises(ValueError, match=f"{key}=0"):
        fdl.build(fdl.Config(part, **{key: value}))

"""Observers: determinism, traces, memory snapshots and the watchdog."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import fiddle as fdl
import pytest
import torch
from torch import nn

from fidgpt.compose.runs import build_trainer
from fidgpt.fiddlers import (
    use_determinism,
    use_memory_snapshot,
    use_moe,
    use_muon,
    use_profiler,
    use_watchdog,
)
from fidgpt.parallel import DataParallel
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


def test_a_memory_snapshot_without_cuda_is_refused_before_the_run_starts(cfg, train, tmp_path):
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
def test_an_observer_that_cannot_write_is_reported_and_the_run_continues(
    use, cfg, tmp_path, capsys
):
    use(cfg)
    taken = {"profile": "a file, where a folder should be", "stacks": "and here too"}
    build_trainer(cfg).train(RunDirectory(tmp_path / "run", texts=taken))
    assert re.search(r"warning: .*(profile|stacks).*\(File exists\)", capsys.readouterr().err)
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == cfg.num_steps


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


def test_a_step_that_hangs_ends_the_process_with_its_stacks(tmp_path: Path):
    path = tmp_path / "stacks" / "rank0.txt"
    messages = f"{path} shows where the watchdog ended an earlier process that hung.\n"
    for printed in ("", messages):  # the second time as after a restart
        done = subprocess.run(
            [sys.executable, "-c", HANGING.format(path=str(tmp_path))],
            timeout=100,
            check=False,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (1, printed)
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


class Asking:
    """Remembers whether torch was to be deterministic in each step."""

    seen: ClassVar[list[bool]] = []

    def observing(self, run: RunDirectory, parallel: DataParallel) -> AbstractContextManager[None]:
        return nullcontext()

    def stepping(self, step: int) -> AbstractContextManager[None]:
        self.seen.append(torch.are_deterministic_algorithms_enabled())
        return nullcontext()


def put(parameters: Iterable[nn.Parameter]) -> None:
    """Changes gradients by an operation that has no deterministic form."""
    gradient = next(iter(parameters)).grad
    assert gradient is not None
    gradient.put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


def test_torch_is_deterministic_for_as_long_as_the_run_lasts(cfg, train):
    cfg.num_steps = 3
    use_moe(cfg)
    use_muon(cfg)
    plain = train(cfg, "plain")
    use_determinism(cfg)
    cfg.observers = [*cfg.observers, fdl.Config(Asking)]
    Asking.seen.clear()
    rows = train(cfg)
    assert Asking.seen == [True, True, True]
    assert not torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    assert memory.fill_uninitialized_memory
    assert [row["loss"] for row in rows] == [row["loss"] for row in plain]


def test_a_part_that_cannot_is_refused_with_torchs_words(cfg, train):
    cfg.num_steps = 2
    use_determinism(cfg)
    cfg.gradient_transform = put
    with pytest.raises(RunError, match=r"put_.* does not have a deterministic(.|\n)*without"):
        train(cfg)
    assert not torch.are_deterministic_algorithms_enabled()

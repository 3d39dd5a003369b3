"""Runs as processes: killed, stopped, restarted, and sharing the work."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from forked import Python, run_ranks

from fidgpt.parallel import DataParallel, ParallelError
from fidgpt.train.checkpoints import newest_good
from fidgpt.train.trackers.trackers import read_rows

pytestmark = pytest.mark.xdist_group("processes")  # one worker trains `whole` for all
COMMAND = [sys.executable, "-m", "fidgpt.cli.train"]
STEPS = 40
LONG = [
    "--config=config:debug",
    f"--config=set:num_steps={STEPS}",
    "--config=set:checkpoints.every=3",
    "--config=set:model.dropout=0.1",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of an undisturbed run."""
    path = tmp_path_factory.mktemp("whole") / "run"
    _finish(path.parent, *LONG, f"--run_dir={path}")
    return _losses(path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_run_ended_by_a_signal_resumes_exactly(whole, tmp_path, number):
    path = tmp_path / "run"
    process = _start(*LONG, f"--run_dir={path}")
    _wait_for_step(process, path, random.Random(number).randrange(4, STEPS - 4))
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert f"--resume={path}" in " ".join(output.split())
        assert newest_good(path) == read_rows(path / "metrics.jsonl")[-1]["step"]
    assert len(read_rows(path / "metrics.jsonl")) < STEPS
    if number == signal.SIGKILL:
        again = [*LONG, f"--run_dir={path}", "--auto_resume"]
        _finish(tmp_path, *again)
        other = _start(*again, "--config=set:seed=1")
        output, _ = other.communicate(timeout=60)
        assert (other.returncode, "holds a run of another config" in output) == (2, True), output
    else:
        _finish(tmp_path, f"--resume={path}")
    assert _losses(path) == whole


def test_torchrun_restarts_a_run_that_lost_a_process(tmp_path):
    """The first start of the run dies in its sixth step; the second one ends it."""
    path = tmp_path / "run"
    script = Path(__file__).with_name("dies_once.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command = [script, "--config=config:debug", "--config=set:checkpoints.every=2"]
    done = subprocess.run(
        [*launch, "--max-restarts=1", *command, f"--run_dir={path}"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (path / "died").exists()
    _finish(tmp_path, "--config=config:debug", f"--run_dir={tmp_path}/one")
    assert _losses(path) == pytest.approx(_losses(tmp_path / "one"), rel=1e-2)


def test_two_processes_train_as_one(tmp_path, on_two_processes):
    first, second = on_two_processes("plain", tmp_path)
    debug = ["--config=config:debug", "--config=fiddler:use_float32"]
    _finish(tmp_path, *debug, f"--run_dir={tmp_path}/one")
    assert _losses(tmp_path / "two") == pytest.approx(_losses(tmp_path / "one"), rel=1e-5)
    assert torch.equal(torch.cat([first["tokens"], second["tokens"]], dim=1), first["whole"])
    assert torch.equal(first["table"], second["table"])
    assert first["tied"] and second["tied"]
    messages = "seed is 0 on process 0 and 1 on process 1 (1 more differ)"
    assert messages in first["refused"] and first["refused"] == second["refused"]
    assert not (tmp_path / "other").exists()


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _finish(folder: Path, *arguments: str) -> None:
    process = Python(*COMMAND[1:], *arguments, output=folder / "output")
    assert process.end(seconds=600) == 0, process.output


def _wait_for_step(process: subprocess.Popen[str], path: Path, step: int) -> None:
    metrics = path / "metrics.jsonl"
    while not metrics.exists() or len(read_rows(metrics)) < step:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.002)


def _losses(path: Path) -> list[float]:
    return [row["loss"] for row in read_rows(path / "metrics.jsonl")]


_LAST = """
import os
from fidgpt.parallel import DataParallel, ParallelError
try:
    with DataParallel() as parallel:
        parallel.largest(0)  # else one may be gone before the other has found it
        if parallel.rank == 1:
            os._exit(0)
except ParallelError as error:
    print(error)
"""


def test_a_rank_without_its_peers_shows_how_to_start(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with (
        pytest.raises(ParallelError, match=r"WORLD_SIZE(.|\n)*torchrun, or unset RANK"),
        DataParallel(),
    ):
        pass


def test_a_peer_that_is_gone_is_no_mistake_of_the_code():
    lost = "[/build/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9099"
    with pytest.raises(ParallelError, match="another process of the run is gone"), DataParallel():
        raise RuntimeError(lost)
    with pytest.raises(RuntimeError, match="^a bug$"), DataParallel():
        raise RuntimeError("a bug")


def test_a_peer_that_is_gone_before_all_leave_is_no_mistake_of_the_code(tmp_path: Path) -> None:
    (tmp_path / "last.py").write_text(_LAST)
    first, _ = run_ranks(2, tmp_path / "last.py", folder=tmp_path)
    assert "another process of the run is gone: " in first

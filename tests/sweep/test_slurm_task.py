"""Tasks of Slurm jobs without Slurm, in processes of this machine; settings of the runner."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fidgpt.files import read_json
from fidgpt.graph import ConfigError
from fidgpt.sweep import Job
from fidgpt.sweep.runners.slurm import BY_VALUE, SlurmRunner

from .conftest import Toys, steps_of
from .test_local import RecordedEvents

pytestmark = pytest.mark.xdist_group("processes")


_LOAD = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))()"


class Started:
    """A task in a process, pickled as for submitit, with a Slurm that only records calls."""

    def __init__(self, job: Job, folder: Path, *, state: str) -> None:
        cloudpickle = pytest.importorskip("cloudpickle")
        self.record, self.calls = folder / "record.json", folder / "noted"
        commands = folder / "bin"
        commands.mkdir(parents=True, exist_ok=True)
        for name, body in (("scontrol", f'echo "$@" >> {self.calls}'), ("squeue", f"echo {state}")):
            (commands / name).write_text(f"#!/bin/sh\n{body}\n")
            (commands / name).chmod(stat.S_IRWXU)
        os.environ["PATH"] = f"{commands}:{os.environ['PATH']}"  # the fixture puts it back
        task = SlurmRunner().task(job, self.record)
        for module in BY_VALUE:
            cloudpickle.register_pickle_by_value(module)
        (folder / "task").write_bytes(cloudpickle.dumps(task))
        self._process = subprocess.Popen([sys.executable, "-c", _LOAD, str(folder / "task")])
        self._metrics = job.directory / "metrics.jsonl"

    def send(self, number: signal.Signals) -> None:
        """Sends the task a signal, as soon as it has made a step."""
        while not (self._metrics.exists() and self._metrics.stat().st_size):
            time.sleep(0.02)
        self._process.send_signal(number)

    def ended(self) -> dict[str, Any]:
        """Return what the task recorded, after its end."""
        self._process.wait(timeout=60)
        return read_json(self.record)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of an array that was requeued once."""
    for name, value in {
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": "8",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_RESTART_COUNT": "1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
class TestATask:
    def test_records_its_end(self, toys: Toys, tmp_path: Path) -> None:
        good, bad = toys.jobs(["1", "2"])
        toys.fail(bad, times=1, words="error: no")
        record = Started(good, tmp_path / "1", state="RUNNING").ended()
        assert (record["state"], record["status"], record["start"]) == ("ended", 0, 1)
        record = Started(bad, tmp_path / "2", state="RUNNING").ended()
        assert (record["state"], record["status"]) == ("ended", 1)
        assert "error: no" in bad.log.read_text()

    @pytest.mark.parametrize(
        ("number", "slurm_state", "state"),
        [
            (signal.SIGUSR1, "RUNNING", "requeued"),
            (signal.SIGTERM, "RUNNING", "requeued"),
            (signal.SIGTERM, "COMPLETING", "ended"),
            (signal.SIGINT, "RUNNING", "ended"),
        ],
    )
    def test_returns_to_the_queue_unless_it_was_cancelled(
        self, toys: Toys, tmp_path: Path, number: signal.Signals, slurm_state: str, state: str
    ) -> None:
        toys.seconds = 0.2
        (job,) = toys.jobs(["1"])
        started = Started(job, tmp_path / "1", state=slurm_state)
        started.send(number)
        assert started.ended()["state"] == state
        calls = started.calls.read_text() if started.calls.exists() else ""
        assert calls == ("requeue 7_1\n" if state == "requeued" else "")
        toys.seconds = 0.0
        assert Started(job, tmp_path / "2", state="RUNNING").ended()["status"] == 0
        assert steps_of(job) == [1, 2, 3, 4, 5]

    def test_refuses_a_point_of_another_process(self, toys: Toys, tmp_path: Path) -> None:
        (job,) = toys.jobs(["1"])
        with job.opened_log():
            assert Started(job, tmp_path / "1", state="RUNNING").ended()["state"] == "refused"
        assert not job.directory.exists()


def test_parameters_of_submitit() -> None:
    resources = {"partition": "gpu", "timeout_min": 90, "cpus": 8, "gpus": 1, "mem_gb": 1.5}
    extra = "--constraint='a100|h100' --exclusive"
    options = {"requeue": True, "signal": "USR1@120", "constraint": "a100|h100", "exclusive": True}
    assert SlurmRunner(nodes=2, processes=4, extra=extra, **resources).parameters == {
        **{"partition": "gpu", "mem": "1536M", "gpus_per_node": 4, "time": 90, "nodes": 2},
        **{"ntasks_per_node": 4, "cpus_per_task": 8, "stderr_to_stdout": True},
        "srun_args": ["--cpus-per-task=8", "--kill-on-bad-exit=1"],
        "additional_parameters": options,
    }


def test_a_machine_without_slurm_is_refused(
    toys: Toys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no sbatch on this machine: start the sweep"):
        SlurmRunner().run(toys.jobs(["1"]), RecordedEvents())

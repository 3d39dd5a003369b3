"""The Slurm script of docs/nodes.md, on two nodes that are launchers on this machine."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_facts import reproducible

from fidgpt.train.trackers.trackers import read_rows

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.long]

# Runs its command once for each node.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do "$@" > "node$node" 2>&1 & pids[$node]=$!; done
echo "${pids[@]}" > launchers
worst=0
for _ in 0 1; do
  wait -n; status=$?
  if [ $status -gt $worst ]; then worst=$status; fi
done
exit $worst
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then printf 'localhost\\nlocalhost\\n'; else echo "$@" >> scontrol; fi
"""


class Job:
    """The script as Slurm would start it, in a directory of its own.

    Args:
      folder: of the job.
      dies: whether a process is killed once.
    """

    def __init__(self, folder: Path, *, dies: bool = False) -> None:
        page = (ROOT / "docs" / "nodes.md").read_text(encoding="utf-8")
        (text,) = re.findall(r"^```bash\n(.*?)^```$", page, re.M | re.S)
        folder.mkdir()
        (folder / "bin").mkdir()
        python = f'#!/bin/bash\nexec {shlex.quote(sys.executable)} "$@"\n'
        for name, program in {"srun": SRUN, "scontrol": SCONTROL, "python": python}.items():
            (folder / "bin" / name).write_text(program)
            (folder / "bin" / name).chmod(0o755)
        script = Path(__file__).with_name("dies_once.py") if dies else ROOT / "train.py"
        (folder / "train.sbatch").write_text(text.replace("train.py", shlex.quote(str(script))))
        self.folder = folder

    def start(self, *flags: str, restarts: int = 3) -> subprocess.Popen[bytes]:
        variables = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_NNODES": "2",
            "SLURM_JOB_NODELIST": "localhost,localhost",
            "PROCESSES": "1",
            "RESTARTS": str(restarts),
            "OMP_NUM_THREADS": "1",
        }
        words = ["bash", "train.sbatch", "--config=config:debug", *flags]
        return subprocess.Popen(words, cwd=self.folder, env=os.environ | variables)

    @property
    def run(self) -> Path:
        return self.folder / "runs" / str(os.getpid())

    def rows(self) -> list[dict[str, object]]:
        return [reproducible(row) for row in read_rows(self.run / "metrics.jsonl")]

    def output(self, node: int) -> str:
        return (self.folder / f"node{node}").read_text()


FLAGS = ("--config=fiddler:use_mesh(tensor=2)", "--config=set:checkpoints.every=2")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    job = Job(tmp_path_factory.mktemp("job") / "job")
    assert job.start(*FLAGS).wait(300) == 0, job.output(0) + job.output(1)
    return job.rows()


def test_a_job_restarts_from_its_newest_checkpoint(
    tmp_path: Path, undisturbed: list[dict[str, object]]
) -> None:
    job = Job(tmp_path / "job", dies=True)
    assert job.start(*FLAGS).wait(300) == 0, job.output(0) + job.output(1)
    assert (job.run / "died").exists()
    assert job.rows() == undisturbed


def test_each_node_names_the_process_that_died_and_the_job_resumes(
    tmp_path: Path, undisturbed: list[dict[str, object]]
) -> None:
    job = Job(tmp_path / "job", dies=True)
    assert job.start(*FLAGS, restarts=0).wait(300) != 0
    # Which launcher has which process is decided as they meet.
    outputs = sorted((job.output(node) for node in (0, 1)), key=lambda text: "SIGKILL" in text)
    assert [text.count("error: ") for text in outputs] == [1, 1], outputs
    assert re.search(r"error: process 1 of 2 \(.*\) is gone: killed or stopped", outputs[0])
    assert "ended with SIGKILL" in outputs[1]
    assert job.start(*FLAGS, restarts=0).wait(300) == 0, job.output(0) + job.output(1)
    assert job.rows() == undisturbed


def test_a_job_saves_before_its_time_limit_and_returns_to_the_queue(
    tmp_path: Path, undisturbed: list[dict[str, object]]
) -> None:
    job = Job(tmp_path / "job")
    process = job.start(*FLAGS)
    deadline = time.monotonic() + 200
    while not (job.run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    for launcher in (job.folder / "launchers").read_text().split():
        os.kill(int(launcher), signal.SIGUSR1)
    status = process.wait(300)
    if status != 0:  # the signal came before the last step
        assert status == 128 + signal.SIGUSR1, job.output(0) + job.output(1)
        assert (job.folder / "scontrol").read_text() == f"requeue {os.getpid()}\n"
        assert job.start(*FLAGS).wait(300) == 0, job.output(0) + job.output(1)
    assert job.rows() == undisturbed

"""Points on a real Ray cluster of two worker nodes: placed, killed, moved, and reported."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import python_path
from rich.console import Console

from fidgpt.graph import ConfigError
from fidgpt.sweep import Job, Sweep
from fidgpt.sweep.runners.ray_cluster import RayRunner, assigned
from fidgpt.sweep.runners.remote import Claim

from .conftest import NUM_STEPS, Toys, rows_of, steps_of
from .test_local import RecordedEvents, check_failures_are_retried, when

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fidgpt[ray]'")
pytestmark = pytest.mark.xdist_group("processes")
ROOT = Path(__file__).parents[2]
NODE = {"num_cpus": 1, "object_store_memory": 80 * 1024 * 1024, "include_dashboard": False}
RUN = ["config:debug", "set:samples=None", "set:evaluators={}"]
# Runs toys on a cluster until it is killed.
DRIVER = """
import pathlib, sys; from fidgpt.sweep import Job
from tests.sweep.conftest import Toys
from tests.sweep.test_local import RecordedEvents
from fidgpt.sweep.runners.ray_cluster import RayRunner
toys = Toys(pathlib.Path(sys.argv[2]), seconds=1.0)
Job.command = property(toys.command)
RayRunner(jobs=2, address=sys.argv[1] or None).run(toys.jobs(["1", "2", "3"]), RecordedEvents())
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of a head, where nothing runs, and two nodes of one core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        before = signal.getsignal(signal.SIGTERM)
        from ray.cluster_utils import Cluster

        soon = {"health_check_period_ms": 500, "health_check_initial_delay_ms": 500}
        made = Cluster(
            initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "_system_config": soon}
        )
        for _ in range(2):
            made.add_node(**NODE)
        yield made
        made.shutdown()
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def on_ray(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RayRunner]:
    """A runner on the cluster."""
    monkeypatch.setattr(RayRunner, "pause", 0.02)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def make(**settings: Any) -> RayRunner:
        return RayRunner(address=cluster.address, **settings)

    return make


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(job: Job) -> bool:
    """Whether the process of a toy is there."""
    return Path(f"/proc/{(job.directory / 'pid').read_text()}").exists()


def test_a_run_gives_the_same_numbers_as_here(on_ray: Any, tmp_path: Path) -> None:
    here, there = (Sweep(*RUN, directory=tmp_path / name) for name in ("here", "there"))
    here.run(console=Console(file=io.StringIO()))
    there.run(console=Console(file=io.StringIO()), runner=on_ray())
    one, other = (rows_of(sweep.jobs[0].directory) for sweep in (here, there))
    assert one == other


def test_two_processes_on_two_nodes_give_the_numbers_of_one(on_ray: Any, tmp_path: Path) -> None:
    there = Sweep(*RUN, directory=tmp_path / "there")
    results = there.run(console=Console(file=io.StringIO()), runner=on_ray(processes=2))
    assert [row["status"] for row in results] == ["finished"], results[0]["last_words"]
    flags = [f"--config={one}" for one in RUN]
    run_dir = f"--run_dir={tmp_path / 'here' / there.points[0].short}"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    command = [sys.executable, *torchrun, "-m", "fidgpt.cli.train", *flags, run_dir]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    assert rows_of(tmp_path / "here" / there.points[0].short) == rows_of(there.jobs[0].directory)
    variables = [
        json.loads((one.directory / "environment.json").read_text())["variables"]
        for one in there.jobs
    ]
    assert [one["WORLD_SIZE"] for one in variables] == ["2"]
    assert [one["LOCAL_WORLD_SIZE"] for one in variables] == ["1"]  # so each had a node of its own


def test_failures_are_retried(on_ray: Any, toys: Toys) -> None:
    check_failures_are_retried(on_ray(jobs=2, retries=1), toys)


def test_a_point_moves_from_a_node_that_is_killed(cluster: Any, on_ray: Any, toys: Toys) -> None:
    toys.seconds = 0.5
    events = RecordedEvents(keep_texts=False)
    jobs = toys.jobs(["1", "2"])
    node = cluster.add_node(**NODE | {"num_cpus": 2}, resources={"doomed": 1})

    thread = when(
        lambda: events.steps.get("seed=1") and events.steps.get("seed=2"),
        lambda: cluster.remove_node(node, allow_graceful=False),
    )
    assert on_ray(jobs=2, cpus=0.6).run(jobs, events)
    thread.join()
    moved = [line for line in events.lines if line[0] == "failed"]
    assert moved and all(
        line[3] == "True" and "its slot on the cluster is gone" in line[2] for line in moved
    )
    assert [steps_of(job) for job in jobs] == [[1, 2, 3, 4, 5]] * 2
    assert [line[0] for line in events.lines].count("finished") == 2


@pytest.mark.parametrize("where", ["cluster", "this machine"])
def test_runs_of_a_killed_driver_end_and_the_same_command_resumes_them(
    where: str, cluster: Any, on_ray: Any, toys: Toys
) -> None:
    address = cluster.address if where == "cluster" else ""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, address, str(toys.directory)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path(ROOT)},
    )
    jobs = toys.jobs(["1", "2", "3"])
    wait_until(lambda: steps_of(jobs[0]) and steps_of(jobs[1]))
    driver.kill()
    driver.wait()
    wait_until(lambda: not is_alive(jobs[0]) and not is_alive(jobs[1]))
    assert len(steps_of(jobs[0])) < NUM_STEPS
    events = RecordedEvents(keep_texts=False)
    assert on_ray(jobs=2).run(jobs, events)
    assert [steps_of(job) for job in jobs] == [[1, 2, 3, 4, 5]] * 3
    assert sorted(line[0] for line in events.lines if line[0] != "waits") == (
        ["finished"] * 3 + ["started"] * 3
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpus": 4}, "set gpus=1, and processes=4"),
        ({"gpus": 0.5, "processes": 2}, "several share none"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RayRunner(**settings)


def test_processes_of_a_node_share_its_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    claims = [
        Claim(0, "a", "10.0.0.1", 7000, ["3"]),
        Claim(0, "b", "10.0.0.2", 7001, ["0"]),
        Claim(0, "a", "10.0.0.1", 7002, ["1"]),
    ]
    several = assigned(claims, threads=2)
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
    assert [[one[name] for name in names] for one in several] == [
        ["0", "0", "2", "3,1"],
        ["1", "0", "1", "0"],
        ["2", "1", "2", "3,1"],
    ]
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"], one["WORLD_SIZE"]) for one in several} == {
        ("10.0.0.1", "7000", "3")
    }
    alone = assigned(claims[:1], threads=2)
    assert alone == [{"CUDA_VISIBLE_DEVICES": "3", "OMP_NUM_THREADS": "2"}]

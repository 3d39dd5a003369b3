"""Processes that cannot begin together, or lose one later, learn which one and why."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked import run_ranks, variables_of_ranks
from torch.distributed.distributed_c10d import PrefixStore, Store

from fidgpt.processes import rendezvous
from fidgpt.processes.heartbeat import Heartbeat
from fidgpt.processes.rendezvous import Rendezvous, RendezvousFailure, Timeouts, introduce

HashStore: Any = vars(dist)["HashStore"]  # torch does not list it
FACTS = {"host": "node-a", "world_size": "3", "torch": "2.13", "fidgpt": "0a1b"}


class Hasty(Timeouts):
    """Waits for moments."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.joining, self.answer = timedelta(seconds=0.3), 0.1


class Answering(Timeouts):
    """Waits long enough for threads of this process."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.answer = 2.0


def met(*facts: dict[str, str], store: Any = None) -> list[list[str] | str]:
    """What comes of processes that introduce themselves: their machines, or their error."""
    store, results = store or HashStore(), {}

    def begin(rank: int) -> None:
        try:
            results[rank] = introduce(
                store, FACTS | facts[rank], rank=rank, timeouts=Hasty(60.0)
            ).hosts
        except RendezvousFailure as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(len(facts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(len(facts))]


def test_processes_get_to_know_their_machines() -> None:
    results = met({}, {"host": "node-b"}, {})
    assert results == [["node-a", "node-b", "node-a"]] * 3


def test_a_process_that_never_comes_is_named_to_all() -> None:
    first, second = met({}, {})
    assert first == second
    assert str(first).startswith("process 2 of 3 did not start within 0.3 s (parallel.timeout=60)")


@pytest.mark.parametrize(("timeout", "seconds"), [(600.0, 60), (2400.0, 240), (60.0, 20)])
def test_the_wait_for_others_follows_from_the_setting(timeout: float, seconds: int) -> None:
    assert Timeouts(timeout).joining == timedelta(seconds=seconds)


@pytest.mark.parametrize(("timeout", "bound"), [(600.0, 60), (2400.0, 240), (60.0, 16)])
def test_a_killed_process_is_noticed_in_a_tenth_of_the_setting(timeout: float, bound: int) -> None:
    """From its last sign of life until processes that cannot report it have ended."""
    waits = Timeouts(timeout)
    assert waits.silence + waits.reporting + waits.answer <= bound


def test_the_store_of_a_killed_process_is_no_late_start() -> None:
    class Closed(HashStore):
        def wait(self, *_: object) -> None:
            raise dist.DistNetworkError("Connection was likely closed.")

    with pytest.raises(RendezvousFailure, match="process 0 of 3 is gone, or its launcher: "):
        introduce(Closed(), FACTS, rank=1, timeouts=Hasty(60.0))


def test_the_absence_of_the_first_one_is_one_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables_of_ranks(2)[1].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RendezvousFailure, match="process 0 of 2 did not .*: nothing answers"):
        rendezvous.meet(Hasty(60.0), device=torch.device("cpu"))
    assert capfd.readouterr().err == ""  # torch's store would print its stack


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"torch": "2.12"},
            r"process 2 of 3 \(node-b\) has torch 2.12, and process 0 \(node-a\) 2.13",
        ),
        ({"fidgpt": "ffff"}, "sources of fidgpt with digest ffff, and process 0 .* 0a1b"),
        ({"world_size": "4"}, "has WORLD_SIZE 4, and process 0"),
    ],
)
def test_a_node_with_other_software_is_named_to_all(other: dict[str, str], message: str) -> None:
    results = met({}, {}, {"host": "node-b", **other})
    assert len({str(one) for one in results}) == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(results[0])


@pytest.fixture(autouse=True)
def _reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the processes of each test claim their errors in a folder of their own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def as_met(rank: int, store: Store) -> Rendezvous:
    return Rendezvous(store, rank, ["node-a", "node-a", "node-b"], "start")


@pytest.fixture
def beside() -> Iterator[Callable[[int], Heartbeat]]:
    """Makes the heartbeat of some of three processes, in threads of this one."""
    store, made = HashStore(), []

    def make(rank: int) -> Heartbeat:
        made.append(Heartbeat(as_met(rank, PrefixStore("run", store)), Answering(60.0)))
        return made[-1]

    yield make
    for one in reversed(made):  # the first one keeps the store until the others have left
        one.leave()


LOST = RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer")


def test_a_process_that_does_not_answer_is_named(beside: Callable[[int], Heartbeat]) -> None:
    first, second = beside(0), beside(1)
    reason = (
        "process 2 of 3 (node-b) is gone: killed or stopped, or a machine or the network is down."
    )
    assert first.explain(LOST) == second.explain(LOST) == reason
    assert (first.report.is_first, second.report.is_first) == (True, False)  # of one machine


def test_an_alarm_ends_the_wait_for_a_process_that_does_not_come_to_save(
    beside: Callable[[int], Heartbeat],
) -> None:
    first, second = beside(0), beside(1)
    wait = first.gate()
    second.fail(ValueError("there is no memory"))
    begin = time.monotonic()
    with pytest.raises(dist.DistError):
        wait()
    assert time.monotonic() - begin < first.timeouts.timeout / 2


def test_the_reason_of_one_is_that_of_all(beside: Callable[[int], Heartbeat]) -> None:
    first, second, third = map(beside, range(3))
    third.fail(ValueError("there is no memory"))
    for other in (first, second):
        assert other.explain(LOST) == "process 2 of 3 (node-b) failed: there is no memory"
    firsts = [one.report.is_first for one in (third, first, second)]
    assert firsts == [True, True, False]


_HANGS = """
import os, time
import torch, torch.distributed as dist
from fidgpt.parallel import DataParallel, Mesh, MeshParallel, ParallelError
from fidgpt.parallel.tensor import TensorParallel

def wait_for_what_never_comes():
    time.sleep(5)
    os._exit(0)

try:
    with MeshParallel(Mesh(tensor=2), tensor=TensorParallel(), timeout=1.5) as parallel:
        parallel.world.all_reduce([torch.ones(1)])
        if parallel.rank == 1:
            wait_for_what_never_comes()
        parallel.places.axes["tensor"].all_reduce([torch.ones(1)])  # a group of its own
except ParallelError as error:
    print(error)
"""


_HANGS_IN_SAVE = """
import os, time
from fidgpt.parallel import DataParallel, ParallelError
from fidgpt.processes.heartbeat import BackgroundProcesses, advance
from fidgpt.train.checkpoints.writing import BackgroundWriter

writer = BackgroundWriter()

def write_to_a_slow_disk():
    for _ in range(8):
        time.sleep(0.5)
        advance()

def write_to_a_disk_that_hangs():
    time.sleep(5)
    os._exit(0)

try:
    with DataParallel(timeout=1.5) as parallel:
        peers = BackgroundProcesses().current()
        peers.together(write_to_a_slow_disk if parallel.rank == 1 else int)
        begin = time.monotonic()
        hanging = write_to_a_disk_that_hangs if parallel.rank == 1 else int
        writer.write(lambda: peers.together(hanging))
        writer.wait()
except ParallelError as error:
    print(error)
    print(time.monotonic() - begin < 10)
"""


@pytest.mark.slow
def test_a_process_that_hangs_in_a_save_is_named_in_the_time_of_the_setting(
    tmp_path: Path,
) -> None:
    """One that gets on, however slowly, is waited for."""
    (tmp_path / "hangs.py").write_text(_HANGS_IN_SAVE)
    first, _ = run_ranks(2, tmp_path / "hangs.py", folder=tmp_path)
    assert "process 1 of 2" in first
    assert "did not come to a collective within parallel.timeout=1.5 s" in first
    assert "hangs.py:15 in write_to_a_disk_that_hangs" in first
    assert first.endswith("True\n")


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_others_in_the_time_of_the_setting(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(_HANGS)
    first, _ = run_ranks(2, tmp_path / "hangs.py", folder=tmp_path)
    assert "did not come to a collective within parallel.timeout=1.5 s: process 1 is at " in first
    assert "hangs.py:8 in wait_for_what_never_comes" in first

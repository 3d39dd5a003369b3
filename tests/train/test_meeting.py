"""Processes that cannot begin together, or lose one later, learn which one and why."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from forked import run_ranks
from torch.distributed.distributed_c10d import PrefixStore, Store

from fidgpt import configs, fiddlers, graph
from fidgpt.compose.runs import build_trainer
from fidgpt.parallel import DataParallel, MeshParallel, meeting
from fidgpt.parallel.meeting import Meeting, MeetingError, Patience, introduce, list_ranks
from fidgpt.parallel.presence import Presence

HashStore: Any = vars(dist)["HashStore"]  # torch does not list it
FACTS = {"host": "node-a", "world_size": "3", "torch": "2.13", "fidgpt": "0a1b"}


class Hasty(Patience):
    """Waits for moments."""

    @property
    def joining(self) -> timedelta:
        return timedelta(seconds=0.3)

    @property
    def answer(self) -> float:
        return 0.1


class Answering(Patience):
    """Waits long enough for threads of this process."""

    @property
    def answer(self) -> float:
        return 2.0


def met(*facts: dict[str, str], store: Any = None) -> list[list[str] | str]:
    """What comes of processes that introduce themselves: their machines, or their error."""
    store, results = store or HashStore(), {}

    def begin(rank: int) -> None:
        try:
            results[rank] = introduce(
                store, FACTS | facts[rank], rank=rank, patience=Hasty(60.0)
            ).hosts
        except MeetingError as error:
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


def test_every_machine_names_once_whom_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(meeting, "_FIRST_WARNING", 0.25)
    met({"world_size": "4"}, {"world_size": "4"}, {"world_size": "4", "host": "node-b"})
    assert capfd.readouterr().err.splitlines() == ["waiting for process 3 of 4 ..."] * 2


def test_processes_without_the_first_one_name_it() -> None:
    with pytest.raises(MeetingError, match="process 0 of 3 did not start within"):
        introduce(HashStore(), FACTS, rank=1, patience=Hasty(60.0))


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


def test_one_that_fails_before_is_not_waited_for() -> None:
    store = HashStore()
    store.set("failed/2", '["node-b", "there is no fiddler:use_mes."]')
    begin = time.monotonic()
    results = met({}, {}, store=store)
    assert time.monotonic() - begin < Hasty().joining.total_seconds()
    assert (
        results == ["process 2 of 3 (node-b) failed at its start: there is no fiddler:use_mes."] * 2
    )


def test_what_an_earlier_start_left_behind_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    store = HashStore()
    store.set("failed/1", '["node-b", "of the last time"]')
    store.set("guest/2", "dead")
    assert met({}, {}, {}, store=store) == [["node-a"] * 3] * 3


def test_processes_are_listed_in_spans() -> None:
    assert list_ranks([3], 8) == "process 3 of 8"
    assert list_ranks([7, 0, 4, 5, 6], 8) == "processes 0, 4-7 of 8"


def as_met(rank: int, store: Store) -> Meeting:
    return Meeting(store, rank, ["node-a", "node-a", "node-b"], "start")


@pytest.fixture
def beside() -> Iterator[Callable[[int], Presence]]:
    """Makes the presence of some of three processes, in threads of this one."""
    store, made = HashStore(), []

    def make(rank: int) -> Presence:
        made.append(Presence(as_met(rank, PrefixStore("run", store)), Answering(60.0)))
        return made[-1]

    yield make
    for one in reversed(made):  # the first one keeps the store until the others have left
        one.leave()


LOST = RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer")


def test_a_process_that_does_not_answer_is_named(beside: Callable[[int], Presence]) -> None:
    first, second = beside(0), beside(1)
    reason = (
        "process 2 of 3 (node-b) is gone: killed or stopped, or a machine or the network is down."
    )
    assert first.explain(LOST) == second.explain(LOST) == reason
    assert (first.is_first, second.is_first) == (True, False)  # of one machine


def test_the_reason_of_one_is_that_of_all(beside: Callable[[int], Presence]) -> None:
    first, second, third = map(beside, range(3))
    third.fail(ValueError("there is no memory"))
    for other in (first, second):
        assert other.explain(LOST) == "process 2 of 3 (node-b) failed: there is no memory"
    assert (third.is_first, first.is_first, second.is_first) == (True, True, False)


class Gone(Store):
    """A store whose process has been killed."""

    def clone(self) -> Store:
        return self


def fail(*_: object) -> Any:
    raise RuntimeError("connection was closed")


for _method in ("add", "check", "compare_set", "get", "set"):
    setattr(Gone, _method, fail)


def test_each_machine_reports_once_that_process_0_is_gone_with_the_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    second, third = (Presence(as_met(rank, Gone()), Answering(60.0)) for rank in (1, 2))
    reason = "process 0 of 3 (node-a) is gone: killed or stopped, or a machine or the network is"
    try:
        for one in (second, third):
            assert one.explain(LOST).startswith(reason)
        assert (second.is_first, third.is_first) == (True, False)
    finally:
        second.leave()
        third.leave()


def test_one_timeout_is_a_setting_that_fiddlers_keep() -> None:
    cfg = configs.debug()
    cfg.parallel.timeout = 40.0
    fiddlers.use_mesh(cfg, tensor=2)
    parallel = build_trainer(cfg).parallel
    assert isinstance(parallel, MeshParallel)
    assert parallel.patience == Patience(40.0)
    assert parallel.patience.saving == timedelta(minutes=8)
    with pytest.raises(ValueError, match="timeout=0"):
        DataParallel(timeout=0.0)
    file = graph.dump(cfg)
    assert "timeout" in file


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
        parallel.sum(torch.ones(1))
        if parallel.rank == 1:
            wait_for_what_never_comes()
        parallel.sum(torch.ones(1), parallel.places.axes["tensor"])  # a group of its own
except ParallelError as error:
    print(error)
"""


_HANGS_IN_SAVE = """
import os, time
from datetime import timedelta
from fidgpt.parallel import DataParallel, ParallelError
from fidgpt.parallel.meeting import Patience
from fidgpt.train.checkpoints.writing import Peers

class Brief(Patience):
    saving = property(lambda self: timedelta(seconds=1.5))

def write_to_a_disk_that_hangs():
    time.sleep(5)
    os._exit(0)

parallel = DataParallel()
parallel.patience = Brief(60.0)
try:
    with parallel:
        Peers().together(write_to_a_disk_that_hangs if parallel.rank == 1 else int)
except ParallelError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_process_that_hangs_in_a_save_is_named_in_time(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(_HANGS_IN_SAVE)
    first, _ = run_ranks(2, tmp_path / "hangs.py", folder=tmp_path)
    assert "process 1 of 2" in first
    assert "did not come to a collective within" in first
    assert "hangs.py:12 in write_to_a_disk_that_hangs" in first


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_others_in_the_time_of_the_setting(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(_HANGS)
    first, _ = run_ranks(2, tmp_path / "hangs.py", folder=tmp_path)
    assert "did not come to a collective within parallel.timeout=1.5 s: process 1 is at " in first
    assert "hangs.py:8 in wait_for_what_never_comes" in first

"""Runs on several processes: sharing weights or work, restarted, and losing one."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sharded
import torch
from forked import Python, run_ranks
from sharded import CASES, trained, trainer_of

from fidgpt.parallel import DataParallel, FullyShardedDataParallel, ParallelError
from fidgpt.train.trackers.trackers import read_rows

pytestmark = pytest.mark.xdist_group("sharded")
Ranks = list[dict[str, Any]]
NARROW = {"narrow", "narrow_mixture"}  # in bfloat16 a sum of two parts is rounded otherwise
EXACT = [(number, case) for number in CASES for case in CASES[number] if case not in NARROW]


def processes(folder: Path, number: int) -> Ranks:
    """What each of so many processes gives in every case."""
    process = Python(sharded.__file__, folder, str(number), output=folder / "output")
    assert process.end(seconds=400) == 0, process.output[-3000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(number)]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Ranks]:
    """By the number of processes."""
    return {number: processes(tmp_path_factory.mktemp("ranks"), number) for number in CASES}


@functools.cache
def alone(case: str) -> dict[str, Any]:
    """What one process gives, which fills no mesh of several."""
    return trained(trainer_of({**CASES[2], **CASES[4], "mesh": (), "hybrid": ()}[case]))


@pytest.mark.parametrize(("number", "case"), EXACT)
def test_several_processes_train_as_one(left, number: int, case: str) -> None:
    one, ranks = alone(case), [rank[case] for rank in left[number]]
    # Muon's iteration in bfloat16 amplifies the rounding of gradients, on some CPUs more.
    bound = 1e-4 if case == "orthogonal" else 1e-5
    for own, row in zip(one["rows"], ranks[0]["rows"], strict=True):
        assert own.keys() == row.keys()
        for name, value in own.items():  # vectors are counts of tokens
            expected = pytest.approx(value, rel=bound) if isinstance(value, float) else value
            assert row[name] == expected, name
    for rank in ranks:
        assert rank["rows"] == ranks[0]["rows"]
        assert rank["text"] == one["text"]
        assert rank["tied"] == one["tied"]
        for name, bias in one["biases"].items():
            assert torch.equal(rank["biases"][name], bias)
    # Muon makes matrices orthogonal in bfloat16, where the last bit of a gradient shows.
    for name, weight in one["end"].items() if case != "orthogonal" else ():
        torch.testing.assert_close(ranks[0]["end"][name], weight, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("number", CASES)
def test_shards_hold_bit_for_bit_what_one_process_draws(left, number: int) -> None:
    for case in CASES[number]:
        one, ranks = alone(case)["start"], [rank[case]["start"] for rank in left[number]]
        for rank in ranks:
            assert rank.keys() == one.keys()
            assert all(torch.equal(rank[name], one[name]) for name in one), case


@pytest.mark.parametrize("case", sorted(NARROW))
def test_what_is_gathered_in_bfloat16_trains_as_a_copy_does(left, case: str) -> None:
    one, ranks = alone(case), [rank[case] for rank in left[2]]
    for own, row in zip(one["rows"], ranks[0]["rows"], strict=True):
        assert row["loss"] == pytest.approx(own["loss"], rel=1e-3)
        assert row["grad_norm"] == pytest.approx(own["grad_norm"], rel=1e-2)
    assert all(weight.dtype == torch.float32 for weight in ranks[0]["end"].values())


@pytest.mark.parametrize(
    ("number", "case", "share"), [(2, "plain", 2), (4, "plain", 4), (4, "hybrid", 2)]
)
def test_memory_falls_with_the_number_of_shards(left, number: int, case: str, share: int) -> None:
    one = alone(case)["bytes"]
    for rank in left[number]:
        for name, size in rank[case]["bytes"].items():
            assert size == pytest.approx(one[name] / share, rel=0.02), name


def test_a_resumed_run_is_bit_for_bit_the_run_that_never_stopped(left) -> None:
    whole, resumed = left[2][0]["runs"]
    assert len(whole) == 4 and resumed == whole


def test_a_number_of_shards_has_to_divide_the_processes() -> None:
    parallel = FullyShardedDataParallel(num_shards=3)
    with pytest.raises(ValueError, match="num_shards=3 does not divide 4 processes"):
        parallel.layout(4)
    with pytest.raises(ValueError, match="num_shards=0"):
        FullyShardedDataParallel(num_shards=0)


COMMAND = ("-m", "fidgpt.cli.train")


def test_torchrun_restarts_a_run_that_lost_a_process(tmp_path):
    """The first start of the run dies in its sixth step; the second one ends it."""
    path = tmp_path / "run"
    script = Path(__file__).with_name("dies_once.py")
    flags = ["--config=config:debug", "--config=set:checkpoints.every=2", f"--run_dir={path}"]
    process = Python(script, *flags, output=tmp_path / "output")
    assert process.end(seconds=300) == 0, process.output
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
    rows = read_rows(tmp_path / "two" / "metrics.jsonl")
    named = [row for row in rows if "slowest/process" in row]
    late = [row for row in named if row["slowest/process"] == 1]  # as its batches are
    assert late and min(row["slowest/seconds/data"] for row in late) > 0.1
    # Where the machine's load made the other one slower still, it took longer than that.
    phases = ("slowest/seconds/data", "slowest/seconds/forward")
    assert len(named) > len(rows) / 2
    assert min(sum(row[phase] for phase in phases) for row in named) > 0.1
    messages = "seed is 0 on process 0 and 1 on process 1 (1 more differ)"
    assert messages in first["refused"] and first["refused"] == second["refused"]
    assert not (tmp_path / "other").exists()


def _finish(folder: Path, *arguments: str) -> None:
    process = Python(*COMMAND, *arguments, output=folder / "output")
    assert process.end(seconds=600) == 0, process.output


def _losses(path: Path) -> list[float]:
    return [row["loss"] for row in read_rows(path / "metrics.jsonl")]


_LAST = """
import os
from fidgpt.parallel import DataParallel, ParallelError
try:
    with DataParallel() as parallel:
        parallel.agree(0)  # else one may be gone before the other has found it
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
    assert "process 1 of 2 (" in first and " is gone: killed or stopped" in first

"""Runs on several processes: as one, restarted, and losing one."""

from pathlib import Path

import pytest
import torch
from forked import Python

from fidgpt.parallel import DataParallel, ParallelError
from fidgpt.train.trackers.trackers import read_rows

pytestmark = pytest.mark.xdist_group("sharded")


COMMAND = ("-m", "fidgpt.cli.train")


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

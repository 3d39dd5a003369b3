"""The group in which processes save one checkpoint: how long each waits for the others."""

from pathlib import Path

import pytest
from forked import run_ranks

# The first rank waits for at most a second while the group is made, and for long afterwards.
_PROGRAM = """
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
from fidgpt.parallel import DataParallel, ParallelError
from fidgpt.train.checkpoints import peers

peers._MEETING = timedelta(seconds=1)
try:
    with DataParallel() as parallel:
        if parallel.rank == 1 and sys.argv[1] == "lost":
            dist.new_group = lambda **_: os._exit(0)
        together = peers.Peers()
        if parallel.rank == 1:
            time.sleep(2)
        print(together.all(parallel.rank))
except ParallelError as error:
    print(error)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(_PROGRAM)
    return path


def test_a_process_lost_while_they_meet_is_not_waited_for(program: Path, tmp_path: Path) -> None:
    first, _ = run_ranks(2, program, "lost", folder=tmp_path)
    assert first.splitlines()[-1].startswith("another process of the run is gone: wait timeout")


def test_once_met_they_wait_for_each_other_for_long(program: Path, tmp_path: Path) -> None:
    outputs = run_ranks(2, program, "late", folder=tmp_path)
    assert [text.splitlines()[-1] for text in outputs] == ["[0, 1]"] * 2

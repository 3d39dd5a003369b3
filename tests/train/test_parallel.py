"""What one process of several sees when the others are not as they should be."""

from pathlib import Path

import pytest
from forked import run_ranks

from fidgpt.parallel import DataParallel, ParallelError

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


def test_a_rank_without_its_peers_is_told_how_to_start(monkeypatch):
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

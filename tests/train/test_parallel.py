"""What one process of several sees when the others are not as they should be."""

import pytest

from fidgpt.parallel import DataParallel, ParallelError


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

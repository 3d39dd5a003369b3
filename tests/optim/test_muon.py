"""Muon on several processes: the weights of one process, and a share of its work each."""

from pathlib import Path
from typing import Any

import muon_ranks
import pytest
import torch
from forked import run_ranks
from torch import nn

SCRIPT = Path(muon_ranks.__file__)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """What four processes leave of each mesh."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(4, SCRIPT, folder, folder=folder)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", muon_ranks.MESHES)
def test_processes_share_the_work_and_step_as_one(ranks: Any, mesh: str) -> None:
    weights = [nn.Parameter(one) for one in muon_ranks.drawn(0)]
    work = muon_ranks.stepped(weights, [muon_ranks.drawn(1), muon_ranks.drawn(2)])
    assert sum(rank[mesh]["operations"] for rank in ranks) == work
    assert max(rank[mesh]["operations"] for rank in ranks) < 1.2 * work / 4
    for rank in ranks:
        for own, one in zip(rank[mesh]["weights"], weights, strict=True):
            assert torch.equal(own, one)

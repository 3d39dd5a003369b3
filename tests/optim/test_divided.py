"""Muon and Adafactor on several processes: the weights of one process, and a share of its work."""

from pathlib import Path
from typing import Any

import optimizer_ranks
import pytest
import torch
from forked import run_ranks
from optimizer_ranks import MATRICES, MESHES, SHAPES, drawn, stepped
from torch import nn

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("divided")]
SCRIPT = Path(optimizer_ranks.__file__)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """What four processes leave of each mesh."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(4, SCRIPT, folder, folder=folder)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(4)]


@pytest.mark.parametrize("mesh", MESHES)
def test_processes_share_the_work_of_muon_and_step_as_one(ranks: Any, mesh: str) -> None:
    weights = [nn.Parameter(one) for one in drawn(0, MATRICES)]
    work = stepped(optimizer_ranks.muon(weights), [drawn(seed, MATRICES) for seed in (1, 2)])
    assert sum(rank[mesh]["operations"] for rank in ranks) == work
    assert max(rank[mesh]["operations"] for rank in ranks) < 1.2 * work / 4
    for rank in ranks:
        for own, one in zip(rank[mesh]["muon"], weights, strict=True):
            assert torch.equal(own, one)


@pytest.mark.parametrize("mesh", MESHES)
def test_processes_add_up_statistics_of_adafactor_and_step_as_one(ranks: Any, mesh: str) -> None:
    weights = [nn.Parameter(one) for one in drawn(0, SHAPES)]
    optimizer = optimizer_ranks.adafactor(weights)
    stepped(optimizer, [drawn(seed, SHAPES) for seed in (1, 2)])
    state = optimizer_ranks.whole_state(optimizer)
    for rank in ranks:
        for own, one in zip(rank[mesh]["adafactor"], weights, strict=True):
            torch.testing.assert_close(own, one.detach(), rtol=1e-5, atol=1e-6)
        for own, one in zip(rank[mesh]["state"], state, strict=True):
            torch.testing.assert_close(own, one, rtol=1e-5, atol=1e-8)

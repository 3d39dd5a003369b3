"""Parts of a step on two processes: numbers are those of the whole, decisions those of all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from forked import run_ranks

from fidgpt.train.trackers.trackers import read_rows, reproducible

pytestmark = pytest.mark.xdist_group("sharded")


def on_two_processes(script: str, path: Path, *arguments: str) -> list[dict[str, Any]]:
    """What each of them leaves."""
    path.mkdir(exist_ok=True)
    run_ranks(2, Path(__file__).with_name(script), path, *arguments, folder=path)
    return [torch.load(path / f"rank{rank}.pt") for rank in (0, 1)]


def test_norms_meters_and_averages_of_dealt_parameters_are_those_of_the_whole(
    tmp_path: Path,
) -> None:
    ranks = on_two_processes("sharded_norms.py", tmp_path)
    for found in ranks:
        dealt, whole = found["dealt"], found["whole"]
        assert dealt.keys() == whole.keys()
        assert dealt.pop("spoilt") == whole.pop("spoilt") == ["other"]
        assert dealt.pop("measured") == pytest.approx(whole.pop("measured"), rel=1e-5)
        for name in whole:
            torch.testing.assert_close(dealt[name], whole[name])
    for name in ("total", "one"):
        assert torch.equal(ranks[0]["dealt"][name], ranks[1]["dealt"][name])


def test_what_one_process_suffers_all_of_them_go_back_from(tmp_path: Path) -> None:
    shares = ("use_data_parallel", "use_fsdp")
    found = {
        share: on_two_processes("two_processes_steps.py", tmp_path / share, share)
        for share in shares
    }
    for first, second in found.values():
        assert first["guards"] == second["guards"]
        assert first["guards"]["divergence"] == {"shift": 1, "num_roll_backs": 1}
        for name in first["model"]:
            assert torch.equal(first["model"][name], second["model"][name])
            assert torch.equal(first["average"][name], second["average"][name])
            assert not torch.equal(first["model"][name], first["average"][name])
    whole, dealt = (read_rows(tmp_path / share / "run" / "metrics.jsonl") for share in shares)
    assert [row["step"] for row in whole] == [*range(1, 8)]
    assert [row.keys() for row in whole] == [row.keys() for row in dealt]
    assert "validation/averaged/loss" in whole[-1] and "update_ratio/matrices" in whole[2]
    for one, other in zip(whole, dealt, strict=True):
        for key in reproducible(one):
            assert one[key] == pytest.approx(other[key], rel=1e-4), key

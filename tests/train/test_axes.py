"""What follows from the facts of an axis: an axis of a user's own, and those that are to come."""

from pathlib import Path
from typing import Any

import pytest
import torch
import toy_axis
from forked import Python
from toy_axis import UnitsMesh, UnitsParallel

from fidgpt.parallel import Mesh, MeshParallel
from fidgpt.parallel.experts import EXPERT
from fidgpt.parallel.pipeline import PIPELINE


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one process leaves, and each of two."""
    folder = tmp_path_factory.mktemp("axis")
    process = Python(Path(toy_axis.__file__), folder, output=folder / "output")
    assert process.end(seconds=600) == 0, process.output[-3000:]
    names = ("alone", "rank0", "rank1")
    return [torch.load(folder / f"{name}.pt", weights_only=False) for name in names]


@pytest.mark.slow(40)
@pytest.mark.xdist_group("axes")
@pytest.mark.parametrize("mesh", toy_axis.MESHES)
def test_an_axis_of_ones_own_trains_as_one_process(
    results: list[dict[str, Any]], mesh: str
) -> None:
    alone, *ranks = results
    one, checked = alone["one"], alone["checked"][mesh]
    assert len(checked["differences"]) > 10 and checked["first"] is None
    assert max(difference.error for difference in checked["differences"]) < 1e-5
    whole, resumed = ([rank[mesh][name] for rank in ranks] for name in ("whole", "resumed"))
    assert [run["rows"] for run in resumed] == [run["rows"] for run in whole]
    for run in (*whole, *resumed, alone["restored"][mesh]):
        assert torch.tensor(run["rows"]).allclose(torch.tensor(one["rows"]), rtol=1e-5)
        for name, weight in one["weights"].items():
            torch.testing.assert_close(run["weights"][name], weight, rtol=1e-4, atol=2e-6)
    assert all(run["held"] < one["held"] for run in whole)


def test_an_axis_of_ones_own_has_a_size_and_needs_a_part() -> None:
    mesh = UnitsMesh(shard=-1, units=2).over(8)
    assert str(mesh) == "shard=4, units=2" and mesh.data_size == 8 and mesh.num_parts == 8
    with pytest.raises(ValueError, match="mesh.units=2 needs a part .* units is None"):
        MeshParallel(mesh)
    assert MeshParallel(mesh, others={"units": UnitsParallel()}).planned_size == 8


def test_experts_borrow_the_processes_of_other_axes() -> None:
    mesh = Mesh(replicate=2, shard=4, context=2, tensor=2, expert=4)
    assert mesh.size == 32 and mesh.data_size == 8 and mesh.num_shards == 8
    grid = {axis.name: size for axis, size in mesh.grid(EXPERT).items()}
    left = "shard x context / expert"
    assert grid == {"pipeline": 1, "replicate": 2, left: 2, "expert": 4, "tensor": 2}
    assert mesh.splits_tokens(EXPERT) and not mesh.splits_tokens(PIPELINE)
    with pytest.raises(ValueError, match="expert=3 must divide the 8 processes of shard x context"):
        Mesh(shard=4, context=2, expert=3)

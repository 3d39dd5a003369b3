"""What some processes saved, any other number of them restores, to the last bit."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from forked import Python, run_ranks

SCRIPT = Path(__file__).with_name("resharded.py")
pytestmark = pytest.mark.xdist_group("sharded")


def do(what: str, run: Path, kind: str, *, processes: int) -> str:
    if processes == 1:
        alone = Python(SCRIPT, what, run, kind, output=run / "output")
        assert alone.end(seconds=240) == 0, alone.output
        return alone.output
    return "".join(run_ranks(processes, SCRIPT, what, run, kind, folder=run))


def files(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints/step_00000003").glob("*.safetensors"))


def test_shards_of_two_are_restored_by_one_and_by_four(tmp_path: Path) -> None:
    do("save", tmp_path, "beside", processes=2)
    assert [name.split("-")[0] for name in files(tmp_path)] == sorted(
        2 * ["model", "optimizer", "stateful"]
    )
    do("compare", tmp_path, "sharded", processes=1)
    do("compare", tmp_path, "sharded", processes=4)


def test_what_one_saved_is_restored_in_shards(tmp_path: Path) -> None:
    do("save", tmp_path, "sharded", processes=1)
    do("compare", tmp_path, "sharded", processes=2)


def test_what_every_process_holds_is_written_once_and_is_plain_safetensors(tmp_path: Path) -> None:
    do("save", tmp_path, "replicated", processes=2)
    names = ["model.safetensors", "optimizer.safetensors", "stateful.safetensors"]
    assert files(tmp_path) == names
    stored = safetensors.torch.load_file(tmp_path / "checkpoints/step_00000003" / names[0])
    expected = torch.load(tmp_path / "expected.pt")["model"]
    assert stored.keys() == expected.keys() - {"tied"}  # which is `table`
    assert all(torch.equal(tensor, expected[name]) for name, tensor in stored.items())
    do("compare", tmp_path, "replicated", processes=1)


def test_where_one_cannot_write_its_part_there_is_no_checkpoint(tmp_path: Path) -> None:
    told = sorted(do("break", tmp_path, "beside", processes=2).splitlines())
    assert told[0].startswith("0 ParallelError process 1 failed: ")
    assert told[1].startswith("1 CheckpointError ")
    assert all("step_00000002 cannot be written (No space left on device)" in it for it in told)
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["step_00000001"]

"""Reading and removing files that others may have put there."""

import json
from pathlib import Path

import pytest
import torch

from fidgpt import files
from fidgpt.placement import Block
from fidgpt.train.checkpoints import manifest
from fidgpt.train.checkpoints.tensors import write_pieces


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(OSError, match="larger than 1 MiB"):
        files.read_bytes("/dev/zero", most=1 << 20)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "..", "", "a\0b", 5, None, ["x"]]
)
def test_names_of_files_elsewhere(name: object, tmp_path: Path) -> None:
    assert not files.is_inside(name)
    if isinstance(name, str):
        body = {"format": 2, "step": 1, "files": {name: {"bytes": 1, "sha256": "x"}}}
        assert manifest.parsed(json.dumps(body).encode()) == {}
        folder = tmp_path / manifest.name_of(1)
        folder.mkdir()
        manifest.write_manifest(folder, step=1, files={name: {"bytes": 1}}, notes={})
        assert (manifest.damage(folder) or "").startswith("is damaged: manifest.json ")


def test_checkpoint_files_of_shards_are_the_same_bytes(tmp_path: Path) -> None:
    files_of = []
    for number in range(8):  # safetensors orders several entries of metadata at random
        path = tmp_path / str(number) / "model-00001-of-00002.safetensors"
        path.parent.mkdir()
        write_pieces(path, {name: Block(torch.ones(2), (0,), (2,)) for name in ("b", "a")})
        files_of.append(path.read_bytes())
    assert len({*files_of}) == 1


def test_a_process_that_stops_waiting_leaves_the_lock_of_another(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with files.only_one(tmp_path / "a", on_wait=lambda: None):
        with pytest.raises(KeyboardInterrupt), files.only_one(tmp_path / "a", on_wait=stop):
            pass
        assert [*tmp_path.iterdir()]
    assert not [*tmp_path.iterdir()]


def test_leftovers_of_others_stay(tmp_path: Path) -> None:
    for name in (".fidgpt-draft-mine", "index-2024.json", "index-notes.json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("years of work")
    killed = tmp_path / f"{files.MARK}{'0' * 16}"
    killed.mkdir()
    (killed / "lock").touch()
    files.remove_leftovers(tmp_path)
    assert not killed.exists()
    assert len([*tmp_path.rglob("thesis.txt")]) == 3

"""Files that are there whole or not at all, and what a writer leaves that is killed."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fidgpt.files import MARK, atomic_path, write_whole


def _killed_writing(path: Path) -> None:
    """A process is killed while it writes there, with more beside its own file."""
    program = f"""if True:
        import os, pathlib
        from fidgpt.files import atomic_path
        with atomic_path(pathlib.Path({str(path)!r})) as draft:
            draft.write_text("half")
            draft.with_name(".tmpab12").touch()  # as safetensors has
            os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", program], check=False)


def test_what_killed_writers_left_goes_with_the_next_and_what_others_write_stays(tmp_path: Path):
    own, other = tmp_path / "own", tmp_path / "other"
    own.write_text("before")
    with atomic_path(other) as living:
        for _ in range(2):
            _killed_writing(own)
        left = [path for path in tmp_path.iterdir() if path.name.startswith(MARK)]
        assert own.read_text() == "before"
        assert len(left) == 2, left  # the living one, and what the last kill left
        with atomic_path(own) as draft:
            draft.write_text("after")
        assert {*tmp_path.iterdir()} == {own, living.parent} and own.read_text() == "after"
        living.mkdir()
        (living / "file").touch()
    assert {*tmp_path.iterdir()} == {own, other} and (other / "file").exists()
    with pytest.raises(OSError, match="not empty"), atomic_path(other) as draft:
        draft.mkdir()
    with pytest.raises(OSError, match="directory"), atomic_path(own) as draft:
        draft.mkdir()
    assert {*tmp_path.iterdir()} == {own, other}


def test_several_may_write_a_file_at_once_and_what_fails_leaves_what_was(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    texts = [f"{letter}" * 1000 for letter in "abcd"]
    with ThreadPoolExecutor(len(texts)) as pool:
        for _ in range(20):
            assert list(pool.map(lambda text: write_whole(path, text), texts)) == [None] * 4
            assert path.read_text() in texts
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "after \ud800")
    assert path.read_text() in texts and [*tmp_path.iterdir()] == [path]


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    path, link = tmp_path / "elsewhere" / "file", tmp_path / "link.txt"
    link.symlink_to(path)
    for text in ("first", "second"):
        with atomic_path(link) as draft:
            assert draft.suffix == ".txt"
            draft.write_text(text)
        assert link.is_symlink() and path.read_text() == text
    assert sorted(one.name for one in tmp_path.iterdir()) == ["elsewhere", "link.txt"]

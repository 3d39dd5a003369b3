"""Files that are there whole or not at all, whoever else writes them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fidgpt.data.preparing.atomic import write_whole


def test_several_may_write_a_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    texts = [f"{letter}" * 1000 for letter in "abcd"]
    with ThreadPoolExecutor(len(texts)) as pool:
        for _ in range(20):
            assert list(pool.map(lambda text: write_whole(path, text), texts)) == [None] * 4
            assert path.read_text() in texts
    assert [*tmp_path.iterdir()] == [path]


def test_what_cannot_be_written_leaves_what_was(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_whole(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "after \ud800")
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]

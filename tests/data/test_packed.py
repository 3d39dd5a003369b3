"""Compressed files, JSON under other names, and folders of links, as other systems write them."""

import bz2
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest

from fidgpt.data import DataError, TextFiles


def by_pyarrow(kind: str) -> Callable[[bytes], bytes]:
    return lambda data: pyarrow.compress(data, codec=kind, asbytes=True)


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".lz4": by_pyarrow("lz4"),
    ".zst": by_pyarrow("zstd"),
}
TEXTS = [f"text {number} é\r\n " for number in range(5000)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("name", ["a.b.jsonl", "shard.00000-of-00512.json", "a.JSONL"])
def test_compressed_files_are_read_like_others(tmp_path: Path, suffix: str, name: str) -> None:
    pack = PACK[suffix]
    # Several packed pieces one after the other are one file.
    (tmp_path / f"{name}{suffix}").write_bytes(pack(LINES[:5000]) + pack(LINES[5000:]))
    assert list(TextFiles(tmp_path).documents()) == TEXTS
    (tmp_path / f"{name}{suffix}").unlink()
    (tmp_path / f"b.txt{suffix}").write_bytes(pack("\ufeffa\r\né".encode()))
    assert list(TextFiles(tmp_path).documents()) == ["a\r\né"]


@pytest.mark.parametrize("suffix", PACK)
def test_truncated_files_are_reported(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(PACK[suffix](LINES)[:-200])
    with pytest.raises(DataError, match=r"Cannot read .*a\.jsonl(.|\n)*complete"):
        list(TextFiles(path).documents())


@pytest.mark.parametrize("name", ["a.zip", "a.jsonl.xz", "a.tar.gz", "a.tgz"])
def test_unsupported_compression_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(DataError, match=r"is compressed(.|\n)*Unpack it first"):
        list(TextFiles(tmp_path).documents())


def test_unpacking_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(PACK[".zst"](LINES))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r'pip install "fidgpt\[parquet\]"'):
        list(TextFiles(tmp_path).documents())


@pytest.mark.parametrize(
    "content", ['{\n "text": "a"\n}\n', '{"name": "a"}\n{"text": "b"}\n', "[1]", "{", "\n"]
)
def test_json_that_is_no_text_a_line_is_plain_text(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert list(TextFiles(tmp_path).documents()) == [content]


def test_rows_of_json_without_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": null}\n\n{"text": ""}\n{"text": "a"}\r\n')
    assert list(TextFiles(tmp_path).documents()) == ["a"]


def test_linked_folders_are_read_once_and_loops_end(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (root / "b").mkdir(parents=True)
    (root / "b" / "b.txt").write_text("b")
    (elsewhere / "deep" / "c.txt").write_text("c")
    (root / "c").symlink_to(elsewhere)
    (root / "d").symlink_to(elsewhere)
    (root / "b" / "up").symlink_to(root)
    (elsewhere / "deep" / "back").symlink_to(root / "b")
    (root / "e.txt").symlink_to(elsewhere / "deep" / "c.txt")
    assert list(TextFiles(root).documents()) == ["b", "c", "c"]

"""Sources: what is read, in which order, and the errors for files that cannot be read."""

import ast
import gzip
import json
import os
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from fidgpt.data import DataError, StandardLibrary, TextFiles


def write_parquet(path: Path, columns: dict[str, list[object]]) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def test_the_standard_library_is_python_without_its_tests() -> None:
    texts = list(StandardLibrary().documents())
    total = sum(len(text.encode()) for text in texts)
    assert 5_000_000 < total < 40_000_000
    assert texts == list(StandardLibrary().documents())
    for text in texts[:20]:
        ast.parse(text)
    assert Path(json.__file__).read_text(encoding="utf-8") in texts


def test_what_is_no_part_of_the_standard_library_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match=r"no source code(.|\n)*TextFiles"):
        list(StandardLibrary().documents())
    for name in ["z.py", "a/b.py", "lib2to3/tests/x.py", "test/x.py", "idlelib/idle_test/x.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for name in ["site-packages/x.py", "dist-packages/x.py", "__pycache__/x.py", "a/data.txt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9")
    assert list(StandardLibrary().documents()) == ["a/b.py", "z.py"]


def test_the_standard_library_keeps_its_identity() -> None:
    assert StandardLibrary().identity() == StandardLibrary().identity()


def test_making_a_source_touches_no_file() -> None:
    TextFiles("/no/such/place")
    StandardLibrary()


def test_a_folder_is_read_in_the_order_of_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.md").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c.jsonl").write_text('{"text": "third"}\n\n{"text": ""}\n{"text": "fourth"}\n')
    write_parquet(tmp_path / "d.parquet", {"text": ["fifth", None, "sixth"], "id": [1, 2, 3]})
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / ".hidden").write_text("hidden")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("hidden too")
    expected = ["first", "second", "third", "fourth", "fifth", "sixth"]
    assert list(TextFiles(tmp_path).documents()) == expected
    assert list(TextFiles(tmp_path, patterns=["*.txt", "*.md"]).documents()) == expected[:2]


def test_single_files_of_each_kind(tmp_path: Path) -> None:
    rows = '{"body": "one \\u00e9"}\n{"body": "two", "n": 1}'
    (tmp_path / "a.ndjson").write_text(rows)
    with gzip.open(tmp_path / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(rows)
    write_parquet(tmp_path / "c.parquet", {"body": ["one é", "two"]})
    for name in ("a.ndjson", "b.jsonl.gz", "c.parquet"):
        texts = list(TextFiles(tmp_path / name, text_field="body").documents())
        assert texts == ["one é", "two"]
    with gzip.open(tmp_path / "d.txt.gz", "wt", encoding="utf-8") as file:
        file.write("packed")
    assert list(TextFiles(tmp_path / "d.txt.gz").documents()) == ["packed"]


def test_text_is_kept_byte_for_byte_but_for_the_mark_at_its_start(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\rthree\n \ufeff".encode())
    assert list(TextFiles(tmp_path / "a.txt").documents()) == ["one\r\ntwo\rthree\n \ufeff"]


def test_a_large_file_becomes_documents_that_end_at_line_ends(tmp_path: Path) -> None:
    text = "".join(f"line {n} é\r\n" for n in range(500)) + "x" * 1000
    (tmp_path / "a.txt").write_bytes(text.encode())
    pieces = list(TextFiles(tmp_path / "a.txt", document_chars=100).documents())
    assert "".join(pieces) == text
    assert len(pieces) > 40
    assert all(piece.endswith("\n") for piece in pieces if "x" not in piece)
    assert max(map(len, pieces)) <= 200


def test_identity_follows_content_and_options(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    first = TextFiles(path).identity()
    assert first == TextFiles(path).identity()
    assert first != TextFiles(path, text_field="body").identity()
    assert first != TextFiles(path, document_chars=10).identity()
    os.utime(path, ns=(1, 1))
    assert first != TextFiles(path).identity()
    folder = TextFiles(tmp_path).identity()
    (tmp_path / "b.txt").write_text("two")
    assert folder != TextFiles(tmp_path).identity()


_ALTERED_GZIP = gzip.compress(b"hello, world")[:10] + b"\xff" * 50  # a header, then no stream
BAD = {
    "latin.txt": ("é".encode("latin-1"), "is not UTF-8 text", "iconv"),
    "latin.jsonl": (b'{"text": "a"}\n{"text": "\xe9"}\n', "line 2 is not UTF-8 text", "iconv"),
    "broken.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2 is not JSON", "one object"),
    "list.jsonl": (b"[1, 2]\n", "line 1 has no text in the field 'text'; it holds list", "field"),
    "other.jsonl": (b'{"body": "a"}\n', "it holds the fields body", "text_field"),
    "number.jsonl": (b'{"text": 3}\n', "no text in the field 'text'", "text_field"),
    "half.jsonl": (b'{"text": "\\ud800"}\n', "line 1 holds half of a surrogate", "Remove"),
    "short.parquet": (b"PAR1 not really", "not a readable Parquet file", "get it again"),
    "deep.jsonl": (b"[" * 100_000, "line 1 is not JSON", "one object"),
    "altered.txt.gz": (_ALTERED_GZIP, "Cannot read", "complete"),
    "short.txt.gz": (gzip.compress(b"hello" * 100)[:20], "Cannot read", "complete"),
    "false.jsonl.gz": (b"plain", "Cannot read", "complete"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    content, message, remedy = BAD[name]
    (tmp_path / name).write_bytes(content)
    for source in (TextFiles(tmp_path / name), TextFiles(tmp_path)):
        with pytest.raises(DataError) as caught:
            list(source.documents())
        assert str(tmp_path / name) in str(caught.value)
        assert message in str(caught.value)
        assert remedy in str(caught.value)


def test_a_missing_or_empty_path_is_reported_by_documents_and_identity(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "folder").mkdir()
    for path, message in [
        (tmp_path / "nothing.txt", "nothing.txt does not exist"),
        (tmp_path / "empty.txt", "empty.txt is empty"),
        (tmp_path / "folder", "folder without text"),
    ]:
        with pytest.raises(DataError, match=message):
            list(TextFiles(path).documents())
        with pytest.raises(DataError, match=message):
            TextFiles(path).identity()


@pytest.mark.parametrize("path", ["", "~no-such-user/text", "a" * 300, "\udcff"])
def test_an_impossible_path_is_reported(path: str) -> None:
    for ask in (TextFiles(path).identity, lambda: list(TextFiles(path).documents())):
        with pytest.raises(DataError, match="Give a"):
            ask()


def test_a_loop_of_links_and_a_pipe_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for name, message in [("loop", "does not exist"), ("pipe", "is not a regular file")]:
        with pytest.raises(DataError, match=f"{name} {message}"):
            TextFiles(tmp_path / name).identity()


def test_a_folder_that_may_not_be_read_is_not_left_out_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_text("a")
    scan = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(DataError, match="closed cannot be accessed: Permission denied"):
        list(TextFiles(tmp_path).documents())


def test_parquet_text_that_is_not_utf_8_is_reported(tmp_path: Path) -> None:
    buffers = [None, pyarrow.py_buffer(b"\0\0\0\0\2\0\0\0"), pyarrow.py_buffer(b"\xff\xfe")]
    column = pyarrow.Array.from_buffers(pyarrow.string(), 1, buffers)
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="a.parquet is not a readable Parquet file"):
        list(TextFiles(tmp_path / "a.parquet").documents())


def test_parquet_columns_are_checked(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"body": ["one"], "n": [1]})
    with pytest.raises(DataError, match=r"no column 'text'; it has body, n\.\n.*text_field"):
        list(TextFiles(tmp_path / "a.parquet").documents())
    with pytest.raises(DataError, match="has int in its column 'n'"):
        list(TextFiles(tmp_path / "a.parquet", text_field="n").documents())


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "a.parquet", {"text": ["one"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r'pip install "fidgpt\[parquet\]"'):
        list(TextFiles(tmp_path / "a.parquet").documents())

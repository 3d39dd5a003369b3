"""Sources of documents: text, JSON lines, tables, folders, the hub."""

import ast
import bz2
import gzip
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from fidgpt.data import DataError, HubDataset, RemoteFiles, StandardLibrary, TextFiles


def read(path: Path, **options: Any) -> list[Any]:
    return list(TextFiles(path, **options).documents())


def refused(path: Path, message: str, **options: Any) -> None:
    with pytest.raises(DataError, match=message):
        read(path, **options)


def write(path: Path, content: str | bytes = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_parquet(path: Path, columns: dict[str, list[object]]) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


@pytest.mark.slow
def test_the_standard_library_is_python_without_its_tests() -> None:
    texts = list(StandardLibrary().documents())
    assert 5_000_000 < sum(len(text.encode()) for text in texts) < 40_000_000
    assert texts == list(StandardLibrary().documents())
    assert StandardLibrary().identity() == StandardLibrary().identity()
    for text in texts[:20]:
        ast.parse(text)
    assert Path(json.__file__).read_text(encoding="utf-8") in texts


def test_a_folder_is_read_in_the_order_of_paths(tmp_path: Path) -> None:
    write(tmp_path / "b" / "1.md", "second")
    write(tmp_path / "a.txt", "first")
    write(
        tmp_path / "c.jsonl", '{"text": "third"}\n\n{"text": ""}\n{"text": null}\n{"text": "4"}\r'
    )
    write_parquet(tmp_path / "d.parquet", {"text": ["fifth", None, "sixth"], "id": [1, 2, 3]})
    write(tmp_path / "empty.txt")
    write(tmp_path / ".hidden", "hidden")
    write(tmp_path / ".git" / "config", "hidden too")
    expected = ["first", "second", "third", "4", "fifth", "sixth"]
    assert read(tmp_path) == expected
    assert read(tmp_path, patterns=["*.txt", "*.md"]) == expected[:2]


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


@pytest.mark.slow
@pytest.mark.parametrize("suffix", PACK)
def test_compressed_files_are_read_like_others(tmp_path: Path, suffix: str) -> None:
    pack = PACK[suffix]
    for name in ("a.b.jsonl", "shard.00000-of-00512.json", "a.JSONL"):
        # Several packed pieces one after the other are one file.
        path = write(tmp_path / f"{name}{suffix}", pack(LINES[:5000]) + pack(LINES[5000:]))
        assert read(tmp_path) == TEXTS
        path.unlink()
    write(tmp_path / f"b.txt{suffix}", pack("\ufeffa\r\né".encode()))
    assert read(tmp_path) == ["a\r\né"]
    path = write(tmp_path / f"a.jsonl{suffix}", pack(LINES)[:-200])
    refused(path, r"Cannot read .*a\.jsonl(.|\n)*complete")


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_unsupported_compression_is_reported(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, b"PK")
    refused(tmp_path, r"is compressed(.|\n)*Unpack it first")


@pytest.mark.parametrize(
    "content", ['{\n "text": "a"\n}\n', '{"name": "a"}\n{"text": "b"}\n', "[1]", "{", "\n"]
)
def test_other_json_is_plain_text(tmp_path: Path, content: str) -> None:
    assert read(write(tmp_path / "a.json", content)) == [content]


def test_the_field_of_the_text_can_be_set(tmp_path: Path) -> None:
    rows = '{"body": "one \\u00e9"}\n{"body": "two", "n": 1}'
    write(tmp_path / "a.ndjson", rows)
    write_parquet(tmp_path / "c.parquet", {"body": ["one é", "two"], "n": [1, 2]})
    for name, holds in (("a.ndjson", "'body'"), ("c.parquet", "'body': None, 'n'")):
        assert read(tmp_path / name, text_field="body") == ["one é", "two"]
        refused(tmp_path / name, rf"no text in the field 'text'; it holds .{holds}.*\n.*text_field")
    refused(tmp_path / "c.parquet", "no text in the field 'n'; it holds .'n': 1", text_field="n")


def test_a_large_file_becomes_documents_that_end_at_line_ends(tmp_path: Path) -> None:
    text = "".join(f"line {n} é\r\n" for n in range(500)) + "x" * 1000
    pieces = read(write(tmp_path / "a.txt", text), document_chars=100)
    assert "".join(pieces) == text
    assert len(pieces) > 40
    assert all(piece.endswith("\n") for piece in pieces if "x" not in piece)
    assert max(map(len, pieces)) <= 200


def test_identity_follows_content_and_options(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one")
    first = TextFiles(path).identity()
    assert first == TextFiles(path).identity()
    assert first != TextFiles(path, text_field="body").identity()
    assert first != TextFiles(path, document_chars=10).identity()
    os.utime(path, ns=(1, 1))
    assert first != TextFiles(path).identity()
    folder = TextFiles(tmp_path).identity()
    write(tmp_path / "b.txt", "two")
    assert folder != TextFiles(tmp_path).identity()


_ALTERED_GZIP = gzip.compress(b"hello, world")[:10] + b"\xff" * 50  # a header, then no stream
BAD = {
    "latin.txt": ("é".encode("latin-1"), "can't decode byte", "iconv"),
    "broken.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2 is not JSON", "an object"),
    "number.jsonl": (
        b'{"text": 3}\n',
        "no text in the field 'text'; it holds .'text': 3",
        "text_field",
    ),
    "short.parquet": (b"PAR1 not really", "", "complete"),
    "altered.txt.gz": (_ALTERED_GZIP, "", "complete"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_with_the_remedy(tmp_path: Path, name: str) -> None:
    content, message, remedy = BAD[name]
    path = write(tmp_path / name, content)
    for source in (path, tmp_path):
        refused(source, rf"{path}.*{message}(.|\n)*{remedy}")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing.txt", r"nothing\.txt does not exist"),
        ("empty.txt", r"empty\.txt is empty"),
        ("folder", "folder without text"),
    ],
)
def test_an_impossible_path_is_reported(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "empty.txt")
    (tmp_path / "folder").mkdir()
    for call in (TextFiles(path).identity, lambda: list(TextFiles(path).documents())):
        with pytest.raises(DataError, match=rf"{message}(.|\n)*Give a"):
            call()


def write_arrow(path: Path, columns: dict[str, list[object]], *, form: str = "stream") -> None:
    table = pyarrow.table(columns)
    new = pyarrow.ipc.new_stream if form == "stream" else pyarrow.ipc.new_file
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=400)


@pytest.mark.parametrize("form", ["stream", "file"])
def test_arrow_of_both_forms_is_read_row_by_row(tmp_path: Path, form: str) -> None:
    texts: list[object] = [f"text {n} é" for n in range(1000)]
    write_arrow(tmp_path / "a.arrow", {"id": list(range(1000)), "body": texts}, form=form)
    assert read(tmp_path / "a.arrow", text_field="body") == texts


def test_a_dataset_that_was_saved_to_disk_is_a_folder_of_arrow(tmp_path: Path) -> None:
    """Its metadata is not text, while other files of these names are."""
    train = tmp_path / "all" / "train"
    write_arrow(train / "data-00000-of-00002.arrow", {"text": ["a", None]})
    write_arrow(train / "data-00001-of-00002.arrow", {"text": ["b"]})
    for name in ("dataset_info.json", "state.json"):
        write(train / name, "{}")
    write(tmp_path / "all" / "dataset_dict.json", '{"splits": ["train"]}')
    write(tmp_path / "all" / "states" / "state.json", "a text")
    assert read(tmp_path / "all") == ["a text", "a", "b"]


def test_several_splits_are_refused_and_caches_are_not_read(tmp_path: Path) -> None:
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    for split in ("train", "test"):
        folder = tmp_path / split
        write_arrow(folder / "data-00000-of-00001.arrow", {"text": [split]})
        write_arrow(folder / "cache-0123456789abcdef.arrow", {"text": ["left"]})
        write(folder / "dataset_info.json", "{}")
        write(folder / "state.json", json.dumps(state))
    write(tmp_path / "dataset_dict.json", '{"splits": ["train", "test"]}')
    refused(tmp_path, r"the splits train, test(.|\n)*folder of one(.|\n)*/train")
    assert read(tmp_path / "test") == ["test"]


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """The two functions that are called, without a network."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, dict[str, Any]]] = []
        self.resolved = 0

    def load_dataset(self, path: str, **options: Any) -> Iterator[dict[str, Any]]:
        self.loaded.append((path, options))
        if path == "no/such":
            raise FileNotFoundError("no such dataset")
        return iter([{"text": "one", "n": 1}, {"text": None, "n": 2}, {"text": "two", "n": 3}])

    def dataset_info(self, path: str, *, revision: str) -> Any:
        self.resolved += 1
        if revision == "gone":
            raise ConnectionError("no network")
        return types.SimpleNamespace(sha=COMMIT)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    client = types.SimpleNamespace(HfApi=lambda: hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    return hub


def test_a_dataset_of_the_hub_is_streamed_from_one_commit(hub: Hub) -> None:
    source = HubDataset("some/texts", name="en", split="train[:10]")
    assert list(source.documents()) == list(source.documents()) == ["one", "two"]
    options = {"name": "en", "split": "train[:10]", "revision": COMMIT, "streaming": True}
    assert hub.loaded[0] == ("some/texts", options)
    assert COMMIT in source.identity()
    assert hub.resolved == 1
    assert source.identity() != HubDataset("some/texts", split="train[:10]").identity()
    resolved = hub.resolved
    source = HubDataset("some/texts", revision=COMMIT)
    assert COMMIT in source.identity()
    assert list(source.documents()) == ["one", "two"]
    assert hub.resolved == resolved


def test_errors_of_the_hub_are_reported(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for source, message in [
        (HubDataset("no/such", revision=COMMIT), "Cannot read the dataset no/such(.|\n)*names"),
        (HubDataset("some/texts", revision="gone"), "Cannot read 'gone'(.|\n)*revision"),
        (HubDataset("some/texts", text_field="body"), "no text.* holds .'text': 'one', 'n'"),
    ]:
        with pytest.raises(DataError, match=message):
            list(source.documents())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'pip install "fidgpt\[datasets\]"'):
        list(HubDataset("some/texts").documents())


def test_files_of_an_object_store_are_read_as_those_here(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    store.pipe("/texts/b.jsonl", b'{"text": "second"}\n{"text": "third"}\n')
    store.pipe("/texts/a.txt", b"first")
    store.pipe("/texts/empty.txt", b"")
    source = RemoteFiles("memory://texts")
    assert [*source.documents()] == ["first", "second", "third"]
    before = source.identity()
    assert RemoteFiles("memory://texts").identity() == before
    store.pipe("/texts/a.txt", b"other")
    assert source.identity() != before
    with pytest.raises(DataError, match=r"memory://nothing has no file"):
        RemoteFiles("memory://nothing").identity()
    (tmp_path / "a.txt").write_text("here", encoding="utf-8")
    assert [*RemoteFiles(f"file://{tmp_path}").documents()] == ["here"]

"""Sources of documents: text, JSON lines, tables, folders."""

import ast
import gzip
import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from fidgpt.data import (
    BPETokenizer,
    ByteTokenizer,
    Corpus,
    CorpusDirectory,
    DataError,
    HubDataset,
    PreparedCorpus,
    Source,
    StandardLibrary,
    TextFiles,
    prepare_corpus,
)
from fidgpt.files import cache_directory, only_one


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


COMMIT = "0123456789abcdef0123456789abcdef01234567"


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
    assert list(TextFiles(tmp_path / "a.arrow", text_field="body").documents()) == texts


def test_a_dataset_that_was_saved_to_disk_is_a_folder_of_arrow(tmp_path: Path) -> None:
    """Its metadata is not text, while other files of these names are."""
    write_arrow(tmp_path / "all" / "train" / "data-00000-of-00002.arrow", {"text": ["a", None]})
    write_arrow(tmp_path / "all" / "train" / "data-00001-of-00002.arrow", {"text": ["b"]})
    for name in ("dataset_info.json", "state.json"):
        (tmp_path / "all" / "train" / name).write_text("{}")
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    (tmp_path / "all" / "states").mkdir()
    (tmp_path / "all" / "states" / "state.json").write_text("a text")
    assert list(TextFiles(tmp_path / "all").documents()) == ["a text", "a", "b"]


def test_of_several_splits_none_is_guessed_and_leftovers_of_maps_are_not_read(
    tmp_path: Path,
) -> None:
    for split in ("train", "test"):
        folder = tmp_path / split
        write_arrow(folder / "data-00000-of-00001.arrow", {"text": [split]})
        write_arrow(folder / "cache-0123456789abcdef.arrow", {"text": ["left"]})
        (folder / "dataset_info.json").write_text("{}")
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (folder / "state.json").write_text(json.dumps(state))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=r"the splits train, test(.|\n)*folder of one(.|\n)*/train"):
        list(TextFiles(tmp_path).documents())
    assert list(TextFiles(tmp_path / "test").documents()) == ["test"]


def test_arrow_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_arrow(tmp_path / "a.arrow", {"body": ["one"], "n": [1]})
    (tmp_path / "b.arrow").write_bytes((tmp_path / "a.arrow").read_bytes()[:50])
    for name, field, message in [
        ("a.arrow", "text", r"no column 'text'; it has body, n\."),
        ("a.arrow", "n", "has int in its column 'n'"),
        ("b.arrow", "text", "b.arrow is not a readable Arrow file(.|\n)*get it again"),
    ]:
        with pytest.raises(DataError, match=message):
            list(TextFiles(tmp_path / name, text_field=field).documents())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r'pip install "fidgpt\[parquet\]"'):
        list(TextFiles(tmp_path / "a.arrow").documents())


class Hub:
    """The two functions that are asked, without a network."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.resolved = 0

    def load_dataset(self, path: str, **options: Any) -> Iterator[dict[str, Any]]:
        self.asked.append((path, options))
        if path == "no/such":
            raise FileNotFoundError("no such dataset")
        return iter(self.rows)

    def dataset_info(self, path: str, *, revision: str) -> Any:
        self.resolved += 1
        if revision == "gone":
            raise ConnectionError("no network")
        return types.SimpleNamespace(sha=COMMIT)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub([{"text": "one", "n": 1}, {"text": None, "n": 2}, {"text": "two", "n": 3}])
    datasets, client = types.ModuleType("datasets"), types.ModuleType("huggingface_hub")
    datasets.__dict__["load_dataset"] = hub.load_dataset
    client.__dict__["HfApi"] = lambda: hub
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    return hub


def test_a_dataset_of_the_hub_is_streamed_from_one_commit(hub: Hub) -> None:
    source = HubDataset("some/texts", name="en", split="train[:10]")
    assert list(source.documents()) == list(source.documents()) == ["one", "two"]
    path, options = hub.asked[0]
    assert path == "some/texts"
    assert options == {
        "name": "en",
        "split": "train[:10]",
        "revision": COMMIT,
        "streaming": True,
    }
    assert COMMIT in source.identity()
    assert hub.resolved == 1
    assert source.identity() != HubDataset("some/texts", split="train[:10]").identity()


def test_a_commit_is_not_asked_for(hub: Hub) -> None:
    source = HubDataset("some/texts", revision=COMMIT)
    assert COMMIT in source.identity()
    assert list(source.documents()) == ["one", "two"]
    assert hub.resolved == 0


def test_errors_of_the_hub_are_reported(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for source, message in [
        (HubDataset("no/such", revision=COMMIT), "Cannot read the dataset no/such(.|\n)*names"),
        (HubDataset("some/texts", revision="gone"), "Cannot resolve 'gone'(.|\n)*revision="),
        (HubDataset("some/texts", text_field="body"), "no column 'body'; it has text, n"),
        (HubDataset("some/texts", text_field="n"), "has int in its column 'n'"),
    ]:
        with pytest.raises(DataError, match=message):
            list(source.documents())
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r'pip install "fidgpt\[datasets\]"'):
        list(HubDataset("some/texts").documents())


MakeSource = Callable[..., Any]


def prepare_bytes(source: Source, directory: Path) -> PreparedCorpus:
    return prepare_corpus(
        source,
        tokenizer=ByteTokenizer(),
        directory=directory,
        validation_fraction=0.1,
        show_progress=False,
    )


def test_a_corpus_is_prepared_once(
    documents: MakeSource, modules: list[str], tmp_path: Path
) -> None:
    source = documents(modules)
    first = Corpus(source, tokenizer=ByteTokenizer(), cache_dir=tmp_path).prepare(
        show_progress=False
    )
    readings = source.num_readings
    again = Corpus(source, tokenizer=ByteTokenizer(), cache_dir=tmp_path)
    assert again.prepare(show_progress=False).directory == first.directory
    assert again.prepare() is again.prepare()
    assert source.num_readings == readings == 2


def test_whatever_changes_the_tokens_changes_the_place(
    documents: MakeSource, modules: list[str], tmp_path: Path
) -> None:
    def place(source: Source, **options: object) -> Path:
        corpus = Corpus(
            source,
            tokenizer=options.get("tokenizer", ByteTokenizer()),  # type: ignore[arg-type]
            cache_dir=tmp_path,
            validation_fraction=float(str(options.get("fraction", 0.02))),
            shard_tokens=int(str(options.get("shard_tokens", 1000))),
        )
        return corpus.prepare(show_progress=False).directory

    source = documents(modules[:4])
    places = {
        place(source),
        place(documents(modules[:4], name="other")),
        place(source, tokenizer=BPETokenizer(vocab_size=300)),
        place(source, tokenizer=BPETokenizer(vocab_size=301)),
        place(source, fraction=0.5),
        place(source, shard_tokens=500),
    }
    assert len(places) == 6


def test_the_checksum_is_that_of_the_content(
    documents: MakeSource, modules: list[str], tmp_path: Path
) -> None:
    first = prepare_bytes(documents(modules), tmp_path / "a")
    moved = prepare_bytes(documents(modules, name="moved"), tmp_path / "b")
    other = prepare_bytes(documents([*modules[:-1], modules[-1] + "."]), tmp_path / "c")
    assert first.checksum == moved.checksum != other.checksum
    assert len(first.checksum) == 64


def in_threads(work: Callable[[], None], *, count: int) -> None:
    with ThreadPoolExecutor(count) as executor:
        for done in [executor.submit(work) for _ in range(count)]:
            done.result(timeout=30)


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    """The lock's file comes and goes, so the moments between are tried many times."""
    inside: list[int] = []
    most: list[int] = []

    def hold() -> None:
        for _ in range(40):
            with only_one(tmp_path / "corpus", on_wait=lambda: None):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    in_threads(hold, count=6)
    assert most == [1] * 240
    assert os.listdir(tmp_path) == []


def test_processes_that_start_together_prepare_once(
    documents: MakeSource, modules: list[str], tmp_path: Path
) -> None:
    """Each thread opens its own lock file, as processes do."""
    source = documents(modules)
    found: list[str] = []

    def prepare() -> None:
        corpus = Corpus(source, tokenizer=BPETokenizer(vocab_size=300), cache_dir=tmp_path)
        found.append(corpus.prepare(show_progress=False).checksum)

    in_threads(prepare, count=6)
    assert len(found) == 6
    assert len(set(found)) == 1
    assert source.num_readings == 2
    assert len(os.listdir(tmp_path / "corpora")) == 1


def test_a_prepared_directory_can_be_used_without_its_source(
    documents: MakeSource, modules: list[str], tmp_path: Path
) -> None:
    written = prepare_bytes(documents(modules), tmp_path / "out")
    assert CorpusDirectory(tmp_path / "out").prepare().checksum == written.checksum
    with pytest.raises(DataError, match=r"is not a prepared corpus(.|\n)*fidgpt.data.prepare"):
        CorpusDirectory(tmp_path / "none").prepare()


def test_the_cache_directory_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("FIDGPT_CACHE")
    assert cache_directory() == tmp_path / "xdg" / "fidgpt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / "home" / ".cache" / "fidgpt"


def test_a_missing_home_directory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIDGPT_CACHE", "~no-such-user/cache")
    with pytest.raises(ValueError, match="Set the environment variable FIDGPT_CACHE"):
        cache_directory()

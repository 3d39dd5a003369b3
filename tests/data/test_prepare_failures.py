"""Errors while a corpus is prepared: a clear message, and nothing half-written."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fidgpt.data import (
    BPETokenizer,
    ByteTokenizer,
    Corpus,
    DataError,
    TextFiles,
    TokenizerFile,
    prepare_corpus,
)
from fidgpt.data.prepare import main
from fidgpt.data.shards import SplitWriter

MakeSource = Callable[..., Any]


def below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"caf\xe9 au lait\n" * 100, "is not UTF-8 text"),
        (b"fine\n" * 60_000 + b"\xff", "is not UTF-8 text"),
        (b"\xef\xbb\xbf", "holds no text at all"),
    ],
)
def test_bad_text_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, message: str
) -> None:
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    (tmp_path / "out").mkdir()
    assert main(["--source", str(path), "--out", str(tmp_path / "out" / "corpus")]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert below(tmp_path / "out") == []


def test_a_second_source_is_refused_rather_than_the_first_forgotten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--source", "a", "--source", "b"])
    assert ended.value.code == 2
    assert "argument --source: takes one value, but was given a and b" in capsys.readouterr().err


def test_a_bad_tokenizer_leaves_nothing(
    documents: MakeSource, modules: list[str], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for path, message in [("none.json", "No such file"), ("tokenizer.json", "no 'model'")]:
        with pytest.raises(DataError, match=message):
            prepare_corpus(
                documents(modules),
                tokenizer=TokenizerFile(tmp_path / path),
                directory=tmp_path / "cache" / "out",
                show_progress=False,
            )
    assert below(tmp_path) == ["tokenizer.json"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, ""),
            r"the disk is full\.\nFree some space there, or choose another",
        ),
        (OSError(errno.EIO, os.strerror(errno.EIO)), r"Input/output error\.\nMake it writable, or"),
        (KeyboardInterrupt(), "^$"),
    ],
)
def test_a_failure_before_the_first_shard_is_finished_leaves_nothing(
    documents: MakeSource,
    modules: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    message: str,
) -> None:
    add = SplitWriter.add
    count = iter(range(1000))

    def fail(writer: SplitWriter, tokens: Any, *, num_bytes: int) -> bool:
        if next(count) == 20:
            raise error
        return add(writer, tokens, num_bytes=num_bytes)

    monkeypatch.setattr(SplitWriter, "add", fail)
    corpus = Corpus(documents(modules), tokenizer=ByteTokenizer(), cache_dir=tmp_path)
    with pytest.raises((DataError, KeyboardInterrupt), match=message) as caught:
        corpus.prepare(show_progress=False)
    assert message == "^$" or str(tmp_path) in str(caught.value)
    assert below(tmp_path) == ["corpora"]
    monkeypatch.undo()
    assert corpus.prepare(show_progress=False).train.num_documents > 40


@pytest.mark.parametrize("place", ["file/cache", "/proc/fidgpt/cache"])
def test_a_place_that_cannot_be_written(
    documents: MakeSource, modules: list[str], tmp_path: Path, place: str
) -> None:
    """Below a regular file, and in the kernel's own tree: closed even to root."""
    (tmp_path / "file").write_text("not a directory")
    corpus = Corpus(documents(modules), tokenizer=ByteTokenizer(), cache_dir=tmp_path / place)
    with pytest.raises(DataError, match=r"Cannot write the prepared corpus(.|\n)*FIDGPT_CACHE"):
        corpus.prepare(show_progress=False)
    assert below(tmp_path) == ["file"]


def test_a_directory_with_other_things_in_it_is_left_alone(
    documents: MakeSource, modules: list[str], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    (tmp_path / "file").write_text("precious too")
    before = below(tmp_path)
    for name in ("mine", "file"):
        with pytest.raises(DataError, match="exists and is not a prepared corpus"):
            prepare_corpus(
                documents(modules),
                tokenizer=ByteTokenizer(),
                directory=tmp_path / name,
                show_progress=False,
            )
    assert below(tmp_path) == before


def test_text_that_grows_while_it_is_read(modules: list[str], tmp_path: Path) -> None:
    class Growing:
        def __init__(self) -> None:
            self.texts = list(modules)

        def documents(self) -> Iterator[str]:
            self.texts.append("more")
            yield from self.texts

        def identity(self) -> str:
            return "growing"

    corpus = Corpus(Growing(), tokenizer=ByteTokenizer(), cache_dir=tmp_path)
    with pytest.raises(DataError, match="text changed while it was read"):
        corpus.prepare(show_progress=False)
    assert below(tmp_path) == ["corpora"]


def test_options_out_of_range(documents: MakeSource, tmp_path: Path) -> None:
    for options, message in [
        ({"validation_fraction": 1.1}, "validation_fraction=1.1 must be from 0 to 1"),
        ({"validation_fraction": -0.1}, "validation_fraction=-0.1"),
        ({"shard_tokens": 0}, "shard_tokens=0 must be at least 1"),
        ({"num_workers": 0}, "num_workers=0 must be at least 1"),
    ]:
        source = documents(["a", "b"])
        with pytest.raises(DataError, match=message):
            Corpus(source, tokenizer=ByteTokenizer(), cache_dir=tmp_path, **options)
    assert below(tmp_path) == []


def test_constructing_reads_and_writes_nothing(tmp_path: Path) -> None:
    Corpus(
        TextFiles(tmp_path / "none.txt"),
        tokenizer=TokenizerFile(tmp_path / "none.json"),
        cache_dir=tmp_path / "cache",
    )
    BPETokenizer(vocab_size=1000)
    assert below(tmp_path) == []

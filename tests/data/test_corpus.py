"""A corpus in a run: prepared once, by one process, in a directory named by its content."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fidgpt.data import (
    BPETokenizer,
    ByteTokenizer,
    Corpus,
    CorpusDirectory,
    DataError,
    PreparedCorpus,
    Source,
    prepare_corpus,
)
from fidgpt.files import cache_directory, only_one

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

"""Corpora truncated, altered or deleted while they are read: an error, and no SIGBUS."""

import os
from pathlib import Path

import numpy as np
import pytest

from fidgpt.data import DataError, PreparedCorpus
from fidgpt.data.indexed_directory import MAX_OPEN_FILES, ArrayFile
from fidgpt.data.packing import best_fit


@pytest.fixture
def corpus(prepared: PreparedCorpus, monkeypatch: pytest.MonkeyPatch) -> PreparedCorpus:
    """One that is too large to be verified whenever it is opened."""
    monkeypatch.setattr("fidgpt.data.prepared.VERIFIED_BELOW_BYTES", 0)
    monkeypatch.setattr("fidgpt.data.packing.VERIFIED_BELOW_BYTES", 0)
    return PreparedCorpus(prepared.directory)


def read_all(corpus: PreparedCorpus) -> None:
    starts = np.arange(0, corpus.train.num_tokens - 100, 100)
    corpus.train.read(starts, length=100)


def test_a_shard_cut_short_while_it_is_read(corpus: PreparedCorpus) -> None:
    read_all(corpus)
    size = (corpus.directory / "train-00001.bin").stat().st_size
    os.truncate(corpus.directory / "train-00001.bin", size // 4 * 2)
    with pytest.raises(DataError, match=rf"train-00001.bin .* ends after {size // 4 * 2} bytes"):
        read_all(corpus)


def test_a_shard_that_is_gone_before_it_is_read(corpus: PreparedCorpus) -> None:
    (corpus.directory / "train-00001.bin").unlink()
    with pytest.raises(DataError, match=r"train-00001.bin .* No such file"):
        read_all(corpus)


def test_a_token_that_the_tokenizer_has_not(corpus: PreparedCorpus) -> None:
    with (corpus.directory / "train-00001.bin").open("r+b") as file:
        file.seek(40)
        file.write(b"\xff\xff")
    with pytest.raises(DataError, match=r"train-00001.bin was altered: it has the token 65535"):
        read_all(corpus)


@pytest.mark.parametrize("ends", [2**40, 0])
def test_documents_out_of_order(corpus: PreparedCorpus, ends: int) -> None:
    with (corpus.directory / "train-00000.ends").open("r+b") as file:
        file.seek(8)
        file.write(ends.to_bytes(8, "little"))
    with pytest.raises(DataError, match=r"train-00000.ends was altered"):
        list(corpus.train.document_bounds(at_once=10))


def test_a_packing_that_was_altered_or_cut_short(corpus: PreparedCorpus) -> None:
    packed = best_fit(corpus, seq_len=64, seed=0)
    path = corpus.directory / "best-fit-64" / "pieces.bin"
    every = np.arange(packed.num_sequences)
    packed.read(every, epoch=0)
    content = path.read_bytes()
    path.write_bytes(b"\xff" * len(content))
    with pytest.raises(DataError, match=r"pieces.bin was altered"):
        packed.read(every, epoch=0)
    os.truncate(path, 8)
    with pytest.raises(DataError, match=r"pieces.bin .* ends after 8 bytes"):
        packed.read(every, epoch=0)


def test_a_limited_number_of_files_stays_open(tmp_path: Path) -> None:
    dtype = np.dtype("<u4")
    numbers = range(MAX_OPEN_FILES + 9)
    files = [ArrayFile(tmp_path / f"{number}.bin", dtype) for number in numbers]
    for number, file in zip(numbers, files, strict=True):
        np.arange(number, number + 50, dtype=dtype).tofile(file.path)
    before = len(os.listdir("/dev/fd"))
    for begin in (3, 40):
        found = [file.read(begin, begin + 2).tolist() for file in files]
        assert found == [[number + begin, number + begin + 1] for number in numbers]
    assert len(os.listdir("/dev/fd")) <= before + MAX_OPEN_FILES

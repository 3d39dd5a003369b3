"""A damaged corpus is refused, with the file that is wrong and the remedy."""

import json
from pathlib import Path
from typing import Any

import pytest

from fidgpt.data import DataError, PreparedCorpus


@pytest.fixture
def directory(prepared: PreparedCorpus) -> Path:
    return prepared.directory


def test_the_command_that_deletes_it_fits_a_shell(tmp_path: Path) -> None:
    (tmp_path / "night owl").mkdir()
    (tmp_path / "night owl" / "index.json").touch()
    with pytest.raises(DataError) as caught:
        PreparedCorpus(tmp_path / "night owl")
    assert f"rm -r '{tmp_path}/night owl'" in str(caught.value)


def refused(directory: Path, *, match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        PreparedCorpus(directory)
    assert f"rm -r {directory}" in str(caught.value)


FILES = ["train-00001.bin", "train-00000.ends", "validation-00000.bin", "tokenizer.json"]


@pytest.mark.parametrize("name", FILES)
def test_one_altered_byte_is_found(directory: Path, name: str) -> None:
    content = bytearray((directory / name).read_bytes())
    content[len(content) // 2] ^= 1
    (directory / name).write_bytes(content)
    refused(directory, match=f"{name} was altered")


@pytest.mark.parametrize("name", FILES[:3])
def test_a_file_cut_short_or_missing_is_found(directory: Path, name: str) -> None:
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(content[:-2])
    refused(directory, match=f"{name} has {len(content) - 2} bytes, but the index has")
    (directory / name).unlink()
    refused(directory, match=f"{name} is missing")


def test_a_missing_tokenizer_is_found(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    refused(directory, match="tokenizer.json cannot be read")


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read"), ("[]", "version None"), ('{"version": 1}', "missing or wrong entry")],
)
def test_an_index_that_makes_no_sense(directory: Path, content: str, message: str) -> None:
    (directory / "index.json").write_text(content)
    refused(directory, match=message)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["tokenizer_files"], None),
        (["tokenizer_files"], [1]),
        (["splits", "train", "tokens"], 10**9),
        (["splits", "train", "tokens"], "many"),
        (["splits", "train", "shards"], []),
        (["splits", "train", "shards", 0, "sha256"], None),
    ],
)
def test_an_index_with_one_wrong_entry(directory: Path, place: list[Any], value: Any) -> None:
    index = entry = json.loads((directory / "index.json").read_text())
    for key in place[:-1]:
        entry = entry[key]
    entry[place[-1]] = value
    (directory / "index.json").write_text(json.dumps(index))
    refused(directory, match="missing or wrong entry")


def test_a_later_format_is_not_guessed_at(directory: Path) -> None:
    index = json.loads((directory / "index.json").read_text())
    (directory / "index.json").write_text(json.dumps({**index, "version": 2}))
    refused(directory, match="version 2, not 1")


def test_a_large_corpus_is_verified_when_asked(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fidgpt.data.prepared.VERIFIED_BELOW_BYTES", 0)
    PreparedCorpus(directory).verify()
    content = bytearray((directory / "train-00000.bin").read_bytes())
    content[0] ^= 1
    (directory / "train-00000.bin").write_bytes(content)
    corpus = PreparedCorpus(directory)
    with pytest.raises(DataError, match=r"train-00000.bin was altered"):
        corpus.verify()

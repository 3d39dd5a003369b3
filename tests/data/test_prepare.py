"""Preparation of corpora: results, resumption, failures, damaged files."""

import itertools
import json
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from fidgpt import data
from fidgpt.data.prepare import main
from fidgpt.data.prepared import SplitWriter
from fidgpt.files import cache_directory

Prepare = Callable[..., data.PreparedCorpus]
BYTES, BPE = data.ByteTokenizer(), data.BPETokenizer(vocab_size=400)


def texts_of(corpus: data.PreparedCorpus, split: data.Split) -> list[str]:
    found = []
    for bounds in split.document_bounds(at_once=1000):
        for begin, stop in itertools.pairwise(bounds.tolist()):
            *tokens, end = split.read(np.array([begin]), length=stop - begin).tokens[0].tolist()
            assert end == corpus.tokenizer.end_of_text
            found.append(corpus.tokenizer.decode(tokens))
    return found


def both_of(corpus: data.PreparedCorpus) -> tuple[list[str], list[str]]:
    return texts_of(corpus, corpus.train), texts_of(corpus, corpus.validation)


def counts(corpus: data.PreparedCorpus) -> tuple[int, int]:
    return corpus.train.num_documents, corpus.validation.num_documents


@pytest.mark.parametrize("shard_tokens", [1, 8000, 10**9])
@pytest.mark.parametrize("spec", [BPE, BYTES], ids=["bpe", "bytes"])
def test_every_document_is_read_back_in_order(modules, prepare, spec, shard_tokens):
    corpus = prepare(modules, tokenizer=spec, validation_fraction=0.2, shard_tokens=shard_tokens)
    train, held_out = both_of(corpus)
    assert sorted(train + held_out) == sorted(modules)
    assert train == [text for text in modules if text in set(train)]
    assert held_out == [text for text in modules if text in set(held_out)]
    assert corpus.train.num_bytes == sum(len(text.encode()) for text in train)
    assert corpus.dtype == "uint16"
    num_shards = len(corpus.train.shards)
    assert (num_shards == len(train)) == (shard_tokens == 1)
    assert (num_shards == 1) == (shard_tokens == 10**9)


@pytest.mark.slow
def test_a_vocabulary_beyond_16_bits_is_written_in_32(modules, prepare, tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {f"filler{n}": n for n in range(70_000)}
    vocabulary |= {letter: 70_000 + n for n, letter in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    backend.save(str(tmp_path / "big.json"))
    corpus = prepare(modules[:5], tokenizer=data.TokenizerFile(tmp_path / "big.json"))
    assert corpus.dtype == "uint32"
    train, held_out = both_of(corpus)
    assert sorted(train + held_out) == sorted(modules[:5])


@pytest.mark.slow
def test_the_hash_of_a_document_decides_whether_it_is_held_out(prepare: Prepare) -> None:
    texts = [f"document {n}" for n in range(2000)]
    _, held_out = both_of(prepare(texts, "a", validation_fraction=0.1))
    # Binomial: 200 expected with a standard deviation of 13.4.
    assert 130 < len(held_out) < 270
    random.Random(0).shuffle(texts)
    _, others = both_of(prepare(texts[:1500], "b", validation_fraction=0.1))
    assert set(others) == set(held_out) & set(texts[:1500])


@pytest.mark.parametrize(
    ("second", "fraction", "expected"),
    [("two", 0.001, (1, 1)), ("two", 0.999, (1, 1)), ("one", 0.5, (2, 0)), ("two", 0.0, (2, 0))],
)
def test_two_different_documents_are_enough_for_both_splits(prepare, second, fraction, expected):
    assert counts(prepare(["one", second], validation_fraction=fraction)) == expected


def test_the_tokenizer_is_not_trained_on_what_is_held_out(prepare: Prepare) -> None:
    texts = [f"{n} " + chr(0x4E00 + n) * 40 for n in range(50)]
    spec = data.BPETokenizer(vocab_size=2000)
    corpus = prepare(texts, tokenizer=spec, validation_fraction=0.2)
    values = corpus.tokenizer.token_values()
    for split, is_known in zip(both_of(corpus), (True, False), strict=True):
        assert split and all((text[-1].encode() in values) == is_known for text in split)


def test_the_command_prepares_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"body": f"text number {n}\n"}) + "\n" for n in range(30))
    )
    arguments = ["--source", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--text_field", "body", "--tokenizer", "bytes"]) == 0
    shown = capsys.readouterr()
    assert "Tokenizing" in shown.err
    assert str(tmp_path / "out") in shown.out
    assert "257 tokens in the vocabulary" in shown.out
    assert sum(counts(data.PreparedCorpus(tmp_path / "out"))) == 30
    assert main([*arguments, "--text_field", "body", "--vocab_size", "300"]) == 2
    assert "prepared from another source, tokenizer" in capsys.readouterr().err


@pytest.fixture
def files(prepare: Prepare) -> Callable[..., dict[str, bytes]]:
    """`files(source, name)`: the files of a corpus of bytes in small shards, by name."""

    def files(source: Any, name: str, **options: Any) -> dict[str, bytes]:
        options = {"shard_tokens": 10_000, "num_workers": 2} | options
        corpus = prepare(source, name, validation_fraction=0.2, **options)
        return {path.name: path.read_bytes() for path in corpus.directory.iterdir()}

    return files


def fail_at(
    patch: pytest.MonkeyPatch, document: int, failure: BaseException | Callable[[], None]
) -> None:
    """Raise or call `failure` when this document is written."""
    add, count = SplitWriter.add, iter(range(10**6))

    def add_or_fail(writer: SplitWriter, encoded: Any, **options: Any) -> bool:
        if next(count) == document:
            if isinstance(failure, BaseException):
                raise failure
            failure()
        return add(writer, encoded, **options)

    patch.setattr(SplitWriter, "add", add_or_fail)


def resumable(directory: Path) -> list[Path]:
    return [*directory.glob(".out.fidgpt-resumable-*")]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_shards_are_not_tokenized_twice(documents, modules, files, tmp_path, monkeypatch, failure):
    expected = files(modules, "whole")
    source = documents(modules)
    with monkeypatch.context() as patch:
        fail_at(patch, 45, failure)
        with pytest.raises((KeyboardInterrupt, data.DataError)):
            files(source, "out")
    assert source.num_readings == 2
    record = json.loads((resumable(tmp_path)[0] / "record.json").read_text())
    finished = sum(split["bytes"] for split in record["splits"].values())
    assert finished > 45 * 2000 - 2 * 13_000

    tokenized: list[str] = []
    encode = data.Tokenizer.encode_batch

    def encode_and_count(self: data.Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
        tokenized.extend(text for text in texts if text in modules)  # and no trial's
        return encode(self, texts)

    monkeypatch.setattr(data.Tokenizer, "encode_batch", encode_and_count)
    assert files(source, "out") == expected
    assert source.num_readings == 3
    total = sum(len(text.encode()) for text in modules)
    assert sum(len(text.encode()) for text in tokenized) == total - finished
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]


@pytest.mark.slow
@pytest.mark.parametrize("record", ["other key", "{", "no tokenizer"])
def test_only_the_same_preparation_is_resumed(modules, files, tmp_path, monkeypatch, record):
    with monkeypatch.context() as patch:
        fail_at(patch, 45, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            files(modules, "out")
    draft = resumable(tmp_path)[0]
    files(modules, "neighbor")
    texts = modules[:50] if record == "other key" else modules
    if record == "no tokenizer":
        (draft / "tokenizer.json").write_text("")
    elif texts is modules:
        (draft / "record.json").write_text(record)
    assert files(texts, "out") == files(texts, "expected")
    assert sorted(os.listdir(tmp_path)) == ["expected", "neighbor", "out"]


@pytest.mark.slow
def test_the_number_of_workers_does_not_change_the_files(modules, files, monkeypatch):
    texts = ["<|endoftext|> is text", "line\r\n\x00 end", *modules, "\N{SNOWMAN}" * 3000]
    expected = files(texts, "one", tokenizer=BPE, num_workers=1)
    monkeypatch.setattr("fidgpt.data.encoders.BATCH_SIZE", 5_000)
    assert files(texts, "three", tokenizer=BPE, num_workers=3) == expected


def below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"caf\xe9 au lait\n" * 100, "can't decode byte"),
        (b"\xef\xbb\xbf", "holds no text"),
    ],
)
def test_bad_text_leaves_nothing(tmp_path, capsys, content, message):
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    (tmp_path / "out").mkdir()
    assert main(["--source", str(path), "--out", str(tmp_path / "out" / "corpus")]) == 2
    assert message in capsys.readouterr().err
    assert below(tmp_path / "out") == []


def test_what_is_not_a_corpus_is_left_alone(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    (tmp_path / "tokenizer.json").write_text("{}")
    before = below(tmp_path)
    for name in ("mine", "tokenizer.json"):
        with pytest.raises(data.DataError, match="exists and is not a prepared corpus"):
            prepare(["a"], name)
    assert below(tmp_path) == before


@pytest.mark.slow
def test_a_corpus_is_prepared_once(documents, modules, tmp_path):
    """Also by threads that start together, each with a lock file of its own as processes have."""
    source = documents(modules)
    found: list[data.PreparedCorpus] = []

    def prepare() -> None:
        corpus = data.Corpus(
            source, tokenizer=data.BPETokenizer(vocab_size=300), cache_dir=tmp_path
        )
        found.append(corpus.prepare(show_progress=False))
        assert corpus.prepare() is found[-1] or corpus.prepare() in found

    in_threads(prepare, count=6)
    assert len({one.checksum for one in found}) == 1
    prepare()
    assert found[-1].directory == found[0].directory
    assert source.num_readings == 2
    assert len(os.listdir(tmp_path / "corpora")) == 1


def in_threads(work: Callable[[], None], *, count: int) -> None:
    with ThreadPoolExecutor(count) as executor:
        for done in [executor.submit(work) for _ in range(count)]:
            done.result(timeout=60)


def test_whatever_changes_the_tokens_changes_the_place(documents, modules, tmp_path):
    def place(source: data.Source, **options: Any) -> Path:
        options = {"tokenizer": BYTES, "shard_tokens": 1000} | options
        corpus = data.Corpus(source, cache_dir=tmp_path, **options)
        return corpus.prepare(show_progress=False).directory

    source = documents(modules[:4])
    places = {
        place(source),
        place(documents(modules[:4], name="other")),
        place(source, tokenizer=data.BPETokenizer(vocab_size=300)),
        place(source, tokenizer=data.BPETokenizer(vocab_size=301)),
        place(source, validation_fraction=0.5),
        place(source, shard_tokens=500),
    }
    assert len(places) == 6


def test_the_checksum_is_that_of_the_content(documents, modules, prepare):
    first, moved = prepare(modules, "a"), prepare(documents(modules, name="moved"), "b")
    other = prepare([*modules[:-1], modules[-1] + "."], "c")
    assert first.checksum == moved.checksum != other.checksum
    assert len(first.checksum) == 64
    assert data.CorpusDirectory(first.directory).prepare().checksum == first.checksum
    with pytest.raises(data.DataError, match=r"is not a prepared corpus(.|\n)*fidgpt.data.prepare"):
        data.CorpusDirectory(first.directory / "none").prepare()


def test_the_cache_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("FIDGPT_CACHE")
    assert cache_directory() == tmp_path / "xdg" / "fidgpt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / "home" / ".cache" / "fidgpt"


def flip(path: Path, *, at: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        *((name, flip, "was altered") for name in ("train-00000.ends", "tokenizer.json")),
        ("train-00001.bin", cut, "bytes, but the index"),
        ("validation-00000.bin", Path.unlink, "is missing"),
        ("tokenizer.json", Path.unlink, "cannot be read"),
    ],
)
def test_damaged_files_are_named(prepared, name, damage, message):
    damage(prepared.directory / name)
    with pytest.raises(
        data.DataError, match=rf"{name} .*{message}(.|\n)*rm -r {prepared.directory}"
    ):
        data.PreparedCorpus(prepared.directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (None, "{", "cannot be read"),
        (["version"], 3, "version 3, not 2"),
    ],
)
def test_an_index_that_is_wrong_is_refused(prepared, place, value, message):
    path = prepared.directory / "index.json"
    index = entry = json.loads(path.read_text())
    for key in (place or [])[:-1]:
        entry = entry[key]
    if place:
        entry[place[-1]] = value
    path.write_text(json.dumps(index) if place else value)
    with pytest.raises(data.DataError, match=rf"{message}(.|\n)*rm -r {prepared.directory}"):
        data.PreparedCorpus(prepared.directory)


@pytest.mark.slow
def test_a_large_corpus_is_verified_on_request(prepared, monkeypatch):
    monkeypatch.setattr("fidgpt.data.prepared.VERIFIED_BELOW_BYTES", 0)
    data.PreparedCorpus(prepared.directory).verify()
    flip(prepared.directory / "train-00000.bin", at=0)
    corpus = data.PreparedCorpus(prepared.directory)
    with pytest.raises(data.DataError, match=r"train-00000.bin was altered"):
        corpus.verify()

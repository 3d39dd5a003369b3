"""Preparing a corpus: what is written, that it never depends on luck, and that it is done once."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from fidgpt.data import (
    BPETokenizer,
    ByteLevelTokenizer,
    ByteTokenizer,
    PreparedCorpus,
    Source,
    Split,
    TokenizerFile,
    prepare_corpus,
)
from fidgpt.data.prepare import main

MakeSource = Callable[..., Any]


def texts_of(corpus: PreparedCorpus, split: Split) -> list[str]:
    tokenizer = corpus.tokenizer
    found = [split.document(number).tolist() for number in range(split.num_documents)]
    assert all(tokens[-1] == tokenizer.end_of_text for tokens in found)
    return [tokenizer.decode(tokens[:-1]) for tokens in found]


@pytest.mark.parametrize("shard_tokens", [1, 2000, 10**9])
@pytest.mark.parametrize("spec", [BPETokenizer(vocab_size=400), ByteTokenizer()])
def test_every_document_is_found_again_in_order(
    modules: list[str],
    documents: MakeSource,
    tmp_path: Path,
    spec: BPETokenizer | ByteTokenizer,
    shard_tokens: int,
) -> None:
    corpus = prepare_corpus(
        documents(modules),
        tokenizer=spec,
        directory=tmp_path / "out",
        validation_fraction=0.2,
        shard_tokens=shard_tokens,
        show_progress=False,
    )
    train = texts_of(corpus, corpus.train)
    held_out = texts_of(corpus, corpus.validation)
    assert sorted(train + held_out) == sorted(modules)
    assert train == [text for text in modules if text in set(train)]
    assert held_out == [text for text in modules if text in set(held_out)]
    assert corpus.train.num_bytes == sum(len(text.encode()) for text in train)
    assert corpus.dtype == "uint16"
    num_shards = len(corpus.train.shards)
    assert num_shards == (corpus.train.num_documents if shard_tokens == 1 else num_shards)
    assert (num_shards == 1) == (shard_tokens == 10**9)


def test_a_vocabulary_beyond_16_bits_is_written_in_32(
    modules: list[str], documents: MakeSource, tmp_path: Path
) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {f"filler{n}": n for n in range(70_000)}
    vocabulary |= {letter: 70_000 + n for n, letter in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    backend.save(str(tmp_path / "big.json"))
    corpus = prepare_corpus(
        documents(modules[:5]),
        tokenizer=TokenizerFile(tmp_path / "big.json"),
        directory=tmp_path / "out",
        show_progress=False,
    )
    assert corpus.dtype == "uint32"
    both = texts_of(corpus, corpus.train) + texts_of(corpus, corpus.validation)
    assert sorted(both) == sorted(modules[:5])


def prepare_bytes(source: Source, directory: Path, *, fraction: float) -> PreparedCorpus:
    return prepare_corpus(
        source,
        tokenizer=ByteTokenizer(),
        directory=directory,
        validation_fraction=fraction,
        show_progress=False,
    )


def test_a_document_is_on_the_same_side_wherever_it_stands(
    documents: MakeSource, tmp_path: Path
) -> None:
    texts = [f"document {n}" for n in range(2000)]
    first = prepare_bytes(documents(texts), tmp_path / "a", fraction=0.1)
    held_out = set(texts_of(first, first.validation))
    # Binomial: 200 expected with a standard deviation of 13.4.
    assert 130 < len(held_out) < 270
    random.Random(0).shuffle(texts)
    second = prepare_bytes(documents(texts[:1500]), tmp_path / "b", fraction=0.1)
    assert set(texts_of(second, second.validation)) == held_out & set(texts[:1500])


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_two_different_documents_are_enough_for_both_sides(
    documents: MakeSource, tmp_path: Path, fraction: float
) -> None:
    corpus = prepare_bytes(documents(["one", "two"]), tmp_path / "out", fraction=fraction)
    assert (corpus.train.num_documents, corpus.validation.num_documents) == (1, 1)


def test_no_document_is_on_both_sides(documents: MakeSource, tmp_path: Path) -> None:
    same = prepare_bytes(documents(["one", "one"]), tmp_path / "same", fraction=0.5)
    assert (same.train.num_documents, same.validation.num_documents) == (2, 0)
    whole = prepare_bytes(documents(["one", "two"]), tmp_path / "whole", fraction=0.0)
    assert (whole.train.num_documents, whole.validation.num_documents) == (2, 0)


def test_the_tokenizer_never_sees_what_is_held_out(documents: MakeSource, tmp_path: Path) -> None:
    texts = [f"{n} " + chr(0x4E00 + n) * 40 for n in range(50)]
    corpus = prepare_corpus(
        documents(texts),
        tokenizer=BPETokenizer(vocab_size=2000),
        directory=tmp_path / "out",
        validation_fraction=0.2,
        show_progress=False,
    )
    values = corpus.tokenizer.token_values()
    for split, seen in ((corpus.train, True), (corpus.validation, False)):
        for text in texts_of(corpus, split):
            assert (text[-1].encode() in values) == seen


def test_a_sample_bounds_what_the_tokenizer_learns_from(
    modules: list[str], documents: MakeSource, tmp_path: Path
) -> None:
    class Recording(BPETokenizer):
        def build(self, sample: Sequence[str]) -> ByteLevelTokenizer:
            self.sample = list(sample)
            return super().build(sample)

    samples = []
    for name, order in (("a", modules), ("b", modules[::-1])):
        spec = Recording(vocab_size=300, sample_bytes=40_000)
        prepare_corpus(
            documents(order), tokenizer=spec, directory=tmp_path / name, show_progress=False
        )
        samples.append(spec.sample)
    assert samples[0] == samples[1]
    assert 20_000 < sum(len(text.encode()) for text in samples[0]) <= 40_000


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
    corpus = PreparedCorpus(tmp_path / "out")
    assert corpus.train.num_documents + corpus.validation.num_documents == 30
    assert main([*arguments, "--text_field", "body", "--vocab_size", "300"]) == 2
    assert "prepared from another source, tokenizer" in capsys.readouterr().err


def test_the_command_as_a_user_types_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 100)
    command = [sys.executable, "-W", "error", "-m", "fidgpt.data.prepare"]
    run = subprocess.run(
        [*command, "--source", "a.txt", "--tokenizer", "bytes", "--quiet"],
        cwd=tmp_path,
        env={**os.environ, "FIDGPT_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert len(os.listdir(tmp_path / "cache" / "corpora")) == 1
    assert np.fromfile(next(tmp_path.rglob("train-00000.bin")), dtype="<u2")[-1] == 256

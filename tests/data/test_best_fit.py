"""Best-fit packing: whole documents, each once an epoch, against a packing done the plain way."""

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fidgpt.data import DataError, TokenStream, best_fit, token_ids
from fidgpt.data.packing import pack
from fidgpt.model.context import PackedDocuments

MakeStream = Callable[..., TokenStream]
END = 256
SEQ_LEN = 32


def plain_best_fit(lengths: Iterable[int], *, capacity: int) -> list[int]:
    """How full each bin is, by looking at every bin for every piece."""
    filled: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [n for n, full in enumerate(filled) if full + length <= capacity]
        if fitting:
            filled[max(fitting, key=lambda n: filled[n])] += length
        else:
            filled.append(length)
    return sorted(filled)


@pytest.mark.parametrize("capacity", [1, 2, 5, 16, 33, 64])
@pytest.mark.parametrize("count", [0, 1, 5, 40, 200])
def test_bins_are_as_full_as_by_the_plain_algorithm(capacity: int, count: int) -> None:
    lengths = np.random.default_rng(count).integers(1, capacity + 1, count)
    counts = np.bincount(lengths, minlength=capacity + 1)
    groups = pack(counts)
    contents = [
        [length for length, times in zip(g.lengths, g.times, strict=True) for _ in range(times)]
        for g in groups
        for _ in range(g.num_bins)
    ]
    assert sorted(map(sum, contents)) == plain_best_fit(lengths.tolist(), capacity=capacity)
    assert sorted(n for bin in contents for n in bin) == sorted(lengths.tolist())


def test_a_billion_pieces_are_packed_as_fast_as_a_few() -> None:
    lengths = np.arange(2049)
    groups = pack((1e9 * np.exp(-lengths / 300) * (lengths > 0)).astype(np.int64))
    used = sum(g.num_bins for g in groups) * 2048
    held = sum(g.num_bins * n * t for g in groups for n, t in zip(g.lengths, g.times, strict=True))
    assert len(groups) < 10_000
    assert 0 <= 1 - held / used < 1e-3


def random_texts(count: int, *, longest: int, seed: int = 0) -> list[str]:
    """Texts that differ in their first five characters."""
    draw = random.Random(seed)
    return [
        (f"{n:05}" + "".join(draw.choices("abcdefghij", k=longest)))[: draw.randint(5, longest)]
        for n in range(count)
    ]


def rows_of_epoch(stream: TokenStream, epoch: int) -> list[list[int]]:
    first = epoch * stream.num_sequences
    return stream.rows(np.arange(first, first + stream.num_sequences)).tolist()


def documents_of(rows: Iterable[list[int]]) -> list[str]:
    """The texts between ends of text, where every one that is learned is one that ends a text."""
    found = []
    for row in rows:
        assert row[0] == END
        text: list[int] = []
        for token in row[1:]:
            if token == END:
                found.append(bytes(text).decode())
                text = []
            elif token >= 0:
                text.append(token)
        assert not text
    return found


def test_documents_that_fit_are_whole_and_each_comes_once_an_epoch(stream_of: MakeStream) -> None:
    texts = random_texts(300, longest=SEQ_LEN - 1)
    stream = stream_of(texts, packing=best_fit)
    for epoch in range(3):
        assert sorted(documents_of(rows_of_epoch(stream, epoch))) == sorted(texts)


def test_an_epoch_is_as_full_as_best_fit_makes_it(stream_of: MakeStream) -> None:
    texts = random_texts(300, longest=SEQ_LEN - 1)
    stream = stream_of(texts, packing=best_fit)
    filled = [sum(token >= 0 for token in row) - 1 for row in rows_of_epoch(stream, 1)]
    lengths = [len(text) + 1 for text in texts]
    assert sorted(filled) == plain_best_fit(lengths, capacity=SEQ_LEN)


def test_what_stays_empty_is_read_as_ends_of_text_and_not_learned(stream_of: MakeStream) -> None:
    stream = stream_of(["abcde", "fghij"], packing=best_fit, seq_len=20)
    (row,) = rows_of_epoch(stream, 0)
    assert row[13:] == [~END] * 8
    assert token_ids(np.array(row))[12:].tolist() == [END] * 9
    assert min(row[:13]) >= 0


def test_a_longer_document_is_cut_and_its_rest_packed(stream_of: MakeStream) -> None:
    """Every token comes once; those that a piece after the first begins with are not learned.

    Of a document that fills its pieces but for the end of text, that end is left out.
    """
    texts = [text for text in random_texts(60, longest=100) if len(text) % SEQ_LEN]
    texts.append("f" * SEQ_LEN)
    stream = stream_of(texts, packing=best_fit)
    corpus = stream.corpus.prepare().train
    tokens = [t for n in range(corpus.num_documents) for t in corpus.document(n).tolist()]
    rows = rows_of_epoch(stream, 0)
    read = [~t if t < 0 else t for row in rows for t in row[1:] if t != ~END]
    assert sorted([*read, END]) == sorted(tokens)
    masked = sum(t < 0 and t != ~END for row in rows for t in row)
    assert masked == sum(len(text) // SEQ_LEN for text in texts) - 1 > 50


def test_the_model_sees_each_document_alone_and_from_its_beginning(stream_of: MakeStream) -> None:
    texts = random_texts(50, longest=12)
    stream = stream_of(texts, packing=best_fit)
    rows = torch.tensor(rows_of_epoch(stream, 0))
    inputs = token_ids(rows)[:, :-1]
    places = PackedDocuments(end_of_text=END)(inputs)
    assert places.documents is not None
    seen = [
        bytes(row[chosen][1:].tolist()).decode()
        for row, documents in zip(inputs, places.documents, strict=True)
        for number in documents.unique().tolist()
        if (chosen := documents == number).sum() > 1
    ]
    assert sorted(seen) == sorted(texts)
    assert (places.positions[inputs == END] == 0).all()


def test_each_epoch_permutes_the_documents(stream_of: MakeStream) -> None:
    stream = stream_of(random_texts(300, longest=12), packing=best_fit)
    first, second = (
        {frozenset(documents_of([row])) for row in rows_of_epoch(stream, epoch)}
        for epoch in range(2)
    )
    assert len(first & second) < len(first) / 10
    order = [documents_of([row]) for row in rows_of_epoch(stream, 0)]
    assert any(list(map(len, row)) != sorted(map(len, row), reverse=True) for row in order)


def test_the_seed_decides_and_another_process_reads_the_same(stream_of: MakeStream) -> None:
    texts = random_texts(100, longest=20)
    first = stream_of(texts, packing=best_fit)
    assert torch.equal(first.batch(50), stream_of(texts, packing=best_fit).batch(50))
    assert not torch.equal(first.batch(50), stream_of(texts, packing=best_fit, seed=2).batch(50))


def test_the_packing_is_written_once_for_each_length(stream_of: MakeStream, tmp_path: Path) -> None:
    texts = random_texts(100, longest=20)
    checksums = {
        stream_of(texts, packing=best_fit).checksum,
        stream_of(texts, packing=best_fit, seq_len=40).checksum,
        stream_of(texts).checksum,
    }
    checksums.add(stream_of([text[::-1] for text in texts], packing=best_fit).checksum)
    assert len(checksums) == 4
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("pieces.bin")}
    assert stream_of(texts, packing=best_fit).checksum in checksums
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("pieces.bin")}


def test_pieces_are_the_same_whatever_is_read_at_once(
    stream_of: MakeStream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with any number of shards and any size of what is held in memory."""
    texts = random_texts(100, longest=90)
    whole = stream_of(texts, packing=best_fit)
    monkeypatch.setattr("fidgpt.data.packing.PIECES_AT_ONCE", 7)

    def elsewhere(corpus: Any, *, seq_len: int, seed: int) -> Any:
        return best_fit(corpus, seq_len=seq_len, seed=seed, cache_dir=tmp_path / "other")

    parts = stream_of(texts, packing=elsewhere)
    assert list((tmp_path / "other").rglob("pieces.bin"))
    assert parts.checksum == whole.checksum
    assert torch.equal(parts.batch(3), whole.batch(3))


@pytest.mark.parametrize("harm", ["cut", "flip", "index", "missing", "foreign", "entry"])
def test_a_damaged_packing_is_found_and_named(stream_of: MakeStream, harm: str) -> None:
    texts = random_texts(100, longest=20)
    stream = stream_of(texts, packing=best_fit)
    directory = stream.corpus.prepare().directory / f"best-fit-{SEQ_LEN}"
    pieces, index = directory / "pieces.bin", directory / "index.json"
    content = json.loads(index.read_text())
    if harm == "cut":
        pieces.write_bytes(pieces.read_bytes()[:-8])
    elif harm == "flip":
        pieces.write_bytes(bytes([pieces.read_bytes()[0] ^ 2]) + pieces.read_bytes()[1:])
    elif harm == "index":
        index.write_text("{")
    elif harm == "missing":
        pieces.unlink()
    elif harm == "foreign":
        index.write_text(json.dumps({**content, "corpus": "0"}))
    else:
        index.write_text(json.dumps({"version": content["version"]}))
    with pytest.raises(DataError, match=r"The packing in (.|\n)*rm -r (.|\n)*from the corpus"):
        stream_of(texts, packing=best_fit)


def test_a_place_that_cannot_be_written_is_named(stream_of: MakeStream, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def here(corpus: Any, *, seq_len: int, seed: int) -> Any:
        return best_fit(corpus, seq_len=seq_len, seed=seed, cache_dir=tmp_path / "file")

    with pytest.raises(DataError, match=r"Cannot write the packing(.|\n)*cache_dir"):
        stream_of(["a text"], packing=here)

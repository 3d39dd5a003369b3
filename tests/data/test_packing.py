"""Packing: document order, best fit, masks and loss masks."""

import random
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fidgpt import data
from fidgpt.data import load_tokenizer as load
from fidgpt.data.packing import pack
from fidgpt.model.context import PackedDocuments

MakeStream = Callable[..., data.TokenStream]
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


@pytest.mark.parametrize(("capacity", "count"), [(1, 5), (5, 1), (16, 40), (33, 200), (64, 0)])
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


def signed(batch: data.Batch) -> Tensor:
    """The tokens, and the complement of those that do not count in the loss."""
    return torch.where(batch.mask, batch.tokens, ~batch.tokens)


def rows_of_epoch(stream: data.TokenStream, epoch: int) -> list[list[int]]:
    first = epoch * stream.num_sequences
    return signed(stream.rows(np.arange(first, first + stream.num_sequences))).tolist()


def documents_of(rows: Iterable[list[int]]) -> list[str]:
    """The texts between ends of text, where every one that is not masked ends a text."""
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


def test_documents_that_fit_are_whole_and_packed_by_best_fit(stream_of: MakeStream) -> None:
    texts = random_texts(300, longest=SEQ_LEN - 1)
    stream = stream_of(texts, packing=data.best_fit)
    full = plain_best_fit([len(text) + 1 for text in texts], capacity=SEQ_LEN)
    for epoch in range(3):
        rows = rows_of_epoch(stream, epoch)
        assert sorted(documents_of(rows)) == sorted(texts)
        assert sorted(sum(token >= 0 for token in row) - 1 for row in rows) == full


def test_padding_is_masked_ends_of_text(stream_of: MakeStream) -> None:
    stream = stream_of(["abcde", "fghij"], packing=data.best_fit, seq_len=20)
    (row,) = rows_of_epoch(stream, 0)
    assert row[13:] == [~END] * 8
    assert stream.batch(0).tokens[0, 12:].tolist() == [END] * 9
    assert min(row[:13]) >= 0


def test_a_longer_document_is_cut_and_its_rest_packed(stream_of: MakeStream) -> None:
    """Every token comes once; the first of a later piece is masked.

    Of a document that fills its pieces but for the end of text, that end is left out.
    """
    texts = [text for text in random_texts(60, longest=100) if len(text) % SEQ_LEN]
    texts.append("f" * SEQ_LEN)
    stream = stream_of(texts, packing=data.best_fit)
    tokens = [token for text in texts for token in (*text.encode(), END)]
    rows = rows_of_epoch(stream, 0)
    read = [~t if t < 0 else t for row in rows for t in row[1:] if t != ~END]
    assert sorted([*read, END]) == sorted(tokens)
    masked = sum(t < 0 and t != ~END for row in rows for t in row)
    assert masked == sum(len(text) // SEQ_LEN for text in texts) - 1 > 50


def test_the_model_sees_each_document_alone_and_from_its_beginning(stream_of: MakeStream) -> None:
    texts = random_texts(50, longest=12)
    stream = stream_of(texts, packing=data.best_fit)
    inputs = stream.rows(np.arange(stream.num_sequences)).inputs
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


def test_epoch_and_seed_permute_the_documents(stream_of: MakeStream) -> None:
    texts = random_texts(300, longest=12)
    stream, other = (stream_of(texts, packing=data.best_fit, seed=seed) for seed in (1, 2))
    first, second, third = (
        {frozenset(documents_of([row])) for row in rows_of_epoch(one, epoch)}
        for one, epoch in ((stream, 0), (stream, 1), (other, 0))
    )
    assert len(first & second) < len(first) / 10
    assert first != third
    order = [documents_of([row]) for row in rows_of_epoch(stream, 0)]
    assert any(list(map(len, row)) != sorted(map(len, row), reverse=True) for row in order)


def test_the_checksum_tells_texts_packings_and_lengths_apart(stream_of: MakeStream) -> None:
    texts = random_texts(100, longest=20)
    streams = [
        stream_of(texts, packing=data.best_fit),
        stream_of(texts, packing=data.best_fit, seq_len=40),
        stream_of(texts),
        stream_of([text[::-1] for text in texts], packing=data.best_fit),
    ]
    assert len({stream.checksum for stream in streams}) == 4
    assert stream_of(texts, packing=data.best_fit).checksum == streams[0].checksum


NAMES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
TOKENIZER = data.ByteTokenizer(special_tokens=NAMES)
MIDDLE_END, PREFIX, SUFFIX, MIDDLE = range(256, 260)


def changed(rows: Any, *, seed: int = 0, first: int = 0, **options: Any) -> Tensor:
    """What the part makes of some rows; complements are tokens that do not count in the loss."""
    rows = torch.tensor(rows)
    part = data.FillInTheMiddle(**options)
    indices = np.arange(first, first + len(rows))
    batch = data.Batch(torch.where(rows < 0, ~rows, rows), rows >= 0)
    return signed(part(batch, indices=indices, seed=seed, tokenizer=TOKENIZER))


def undone(text: list[int]) -> tuple[str, list[int]]:
    """The form of a text, and the text before it was changed."""
    if PREFIX not in text:
        return "as it was", text
    turn, fill = text.index(SUFFIX), text.index(MIDDLE)
    assert text[0] == PREFIX
    assert [text.count(token) for token in (PREFIX, SUFFIX, MIDDLE)] == [1, 1, 1]
    before, after, middle = text[1:turn], text[turn + 1 : fill], text[fill + 1 :]
    if turn == 1:
        return "suffix first", middle + after
    return "prefix first", before + middle + after


def a_row(*, length: int = 64) -> list[int]:
    return [n % 250 for n in range(length)]


@pytest.mark.parametrize("spm_rate", [0.0, 1.0])
def test_the_text_can_be_put_together_again(spm_rate: float) -> None:
    """Where the sequence cuts it off, less of it fits, and an end of text follows."""
    rows = [a_row()] * 100
    for row in changed(rows, rate=1.0, spm_rate=spm_rate).tolist():
        form, text = undone(row[:-1])
        assert row[-1] == MIDDLE_END
        assert text == a_row()[:-4]
        assert form == "suffix first" or spm_rate == 0.0


def test_whole_texts_of_a_row_keep_all_their_tokens() -> None:
    lengths = (30, 15, 40)
    row = [token for n in lengths for token in (*a_row(length=n), MIDDLE_END)]
    padded = [*row, *[~MIDDLE_END] * 6]  # as best_fit does
    for new in changed([padded] * 50, rate=1.0).tolist():
        assert len(new) == len(padded) and new.count(MIDDLE_END) == 3 and ~MIDDLE_END not in new
        texts = [[*one] for is_end, one in groupby(new, MIDDLE_END.__eq__) if not is_end]
        assert [undone(text)[1] for text in texts] == [a_row(length=n) for n in lengths]
    for new in changed([row] * 50, rate=1.0).tolist():  # the sequence cuts off the last one
        assert undone(new[:33])[1] == a_row(length=30)
        assert new[33:50] == [MIDDLE_END, *a_row(length=15), MIDDLE_END]
        assert undone(new[50:-1])[1] == a_row(length=34) and new[-1] == MIDDLE_END


@pytest.mark.slow
def test_chance_has_the_rates() -> None:
    """Of 4,000 texts, within 4 standard errors."""
    rows = changed([a_row()] * 4000, rate=0.3, spm_rate=0.25).tolist()
    forms = [undone(row[:-1])[0] if PREFIX in row else "as it was" for row in rows]
    assert abs(forms.count("as it was") / 4000 - 0.7) < 4 * (0.21 / 4000) ** 0.5
    changed_count = 4000 - forms.count("as it was")
    first = sum(row[:2] == [PREFIX, SUFFIX] for row in rows)
    # An empty prefix in the other form looks the same: of 60 tokens, one in about 30.
    expected = 0.25 + 0.75 / 31
    assert abs(first / changed_count - expected) < 4 * (0.25 * 0.75 / changed_count) ** 0.5


def test_a_rate_of_zero_changes_nothing_and_masked_tokens_stay_masked() -> None:
    assert changed([a_row()] * 20, rate=0.0).tolist() == [a_row()] * 20
    row = [MIDDLE_END, ~97, *a_row(length=40), MIDDLE_END, *[~MIDDLE_END] * 5]
    for new in changed([row] * 20, rate=1.0).tolist():
        assert new[-3:] == row[-6:-3]
        assert new.count(~97) == 1


def test_a_stream_changes_its_sequences(stream_of: MakeStream, modules: list[str]) -> None:
    before, stream, other = (
        stream_of(modules[:8], tokenizer=TOKENIZER, seq_len=128, transforms=transforms)
        for transforms in ([], [data.FillInTheMiddle(rate=0.9)], [data.FillInTheMiddle(rate=0.8)])
    )
    batch = stream.batch(3)
    assert (batch.tokens == MIDDLE).any() and batch.counted is None
    assert batch.tokens.shape == before.batch(3).tokens.shape
    assert len({one.checksum for one in (before, stream, other)}) == 3


def test_tokens_are_found_by_name(stream_of: MakeStream) -> None:
    texts = ["some text to train on, and some more of it " * 4] * 3
    bpe = data.BPETokenizer(vocab_size=300, special_tokens=NAMES)
    named = stream_of(texts, tokenizer=bpe, transforms=[data.FillInTheMiddle(rate=1.0)])
    assert [named.tokenizer.special_ids()[name] for name in NAMES] == [1, 2, 3]
    assert {1, 2, 3} <= set(named.batch(0).tokens.flatten().tolist())
    with pytest.raises(
        data.DataError, match=r"no special token '<\|fim_prefix\|>'(.|\n)*BPETokenizer"
    ):
        stream_of(texts, transforms=[data.FillInTheMiddle()])
    with pytest.raises(data.DataError, match="no special token 257"):
        stream_of(texts, transforms=[data.FillInTheMiddle(prefix=257)])


@pytest.mark.parametrize("make", [data.BPETokenizer, data.ByteTokenizer])
def test_special_tokens_are_kept_and_no_text_spells_them(make: Any, tmp_path: Any) -> None:
    sizes: dict[str, Any] = {"vocab_size": 300} if make is data.BPETokenizer else {}
    spec = make(special_tokens=NAMES, **sizes)
    assert spec.identity() != make(**sizes).identity()
    tokenizer = spec.build(["a small text, a small text"])
    ids = {tokenizer.special_ids()[name] for name in NAMES}
    assert not ids & {*tokenizer.encode("<|fim_prefix|> is text"), tokenizer.end_of_text}
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load(tmp_path / "tokenizer.json")
    assert loaded.special_ids() == tokenizer.special_ids()
    assert loaded.vocab_size == tokenizer.vocab_size == len(tokenizer.token_bytes())
    assert loaded.decode([*ids, *tokenizer.encode("é")]) == "é"

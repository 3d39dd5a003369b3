"""Streams: batches as a pure function of the step, against windows cut the plain way."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fidgpt.data import ByteTokenizer, Corpus, DataError, HeldOut, Source, TextFiles, TokenStream

SEQ_LEN = 32


class Case:
    """A corpus of bytes, with its splits as plain lists for reference."""

    def __init__(self, source: Source, cache: Path, *, shard_tokens: int = 10**9) -> None:
        self.corpus = Corpus(
            source,
            tokenizer=ByteTokenizer(),
            validation_fraction=0.2,
            cache_dir=cache,
            shard_tokens=shard_tokens,
        )
        prepared = self.corpus.prepare(show_progress=False)
        self.train, self.validation = (
            [int(t) for n in range(split.num_documents) for t in split.document(n)]
            for split in (prepared.train, prepared.validation)
        )

    def stream(self, *, batch_size: int = 8, seed: int = 1, seq_len: int = SEQ_LEN) -> TokenStream:
        stream = TokenStream(self.corpus, seq_len=seq_len, batch_size=batch_size, seed=seed)
        stream.prepare(show_progress=False)
        return stream

    def held_out(self, *, batch_size: int = 8, num_batches: int | None = None) -> HeldOut:
        held_out = HeldOut(
            self.corpus, seq_len=SEQ_LEN, batch_size=batch_size, num_batches=num_batches
        )
        held_out.prepare(show_progress=False)
        return held_out


def windows(tokens: list[int], *, seq_len: int = SEQ_LEN) -> list[list[int]]:
    starts = range(0, len(tokens) - seq_len, seq_len)
    return [tokens[start : start + seq_len + 1] for start in starts]


@pytest.fixture(scope="module")
def case(modules: list[str], tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("text")
    for number, text in enumerate(modules[:20]):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return Case(TextFiles(folder), tmp_path_factory.mktemp("cache"))


def test_a_batch_depends_on_nothing_but_the_step(case: Case) -> None:
    first = case.stream()
    steps = list(range(200))
    expected = [first.batch(step) for step in steps]
    random.Random(0).shuffle(steps)
    second = case.stream()
    for step in steps:
        assert torch.equal(second.batch(step), expected[step])
        assert torch.equal(first.batch(step), expected[step])


def test_every_window_comes_once_an_epoch_in_another_order(case: Case) -> None:
    stream = case.stream(batch_size=1)
    reference = windows(case.train)
    assert stream.num_sequences == len(reference)
    orders = []
    for epoch in range(2):
        steps = range(epoch * len(reference), (epoch + 1) * len(reference))
        orders.append([stream.batch(step)[0].tolist() for step in steps])
        assert sorted(orders[-1]) == sorted(reference)
    assert orders[0] != orders[1]
    assert reference not in orders


def test_batch_size_does_not_change_the_order_and_batches_run_across_epochs(case: Case) -> None:
    single, batched = case.stream(batch_size=1), case.stream(batch_size=7)
    assert batched.num_sequences % 7
    for step in range(0, 3 * batched.num_sequences // 7, 5):
        rows = [single.batch(7 * step + row) for row in range(7)]
        assert torch.equal(batched.batch(step), torch.cat(rows))


def test_a_batch_larger_than_the_corpus(case: Case) -> None:
    stream = case.stream(batch_size=8, seq_len=len(case.train) // 3 - 1)
    assert stream.num_sequences == 3
    single = case.stream(batch_size=1, seq_len=len(case.train) // 3 - 1)
    rows = [single.batch(8 * 5 + row) for row in range(8)]
    assert torch.equal(stream.batch(5), torch.cat(rows))


def test_the_seed_changes_the_order(case: Case) -> None:
    assert not torch.equal(case.stream(seed=1).batch(0), case.stream(seed=2).batch(0))


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_any_number_of_ranks_reads_the_same_tokens(case: Case, world_size: int) -> None:
    stream, held_out = case.stream(), case.held_out()
    for part, step in ((stream, 0), (stream, 177), (held_out, 0), (held_out, 3)):
        ranked = [part.batch(step, rank=r, world_size=world_size) for r in range(world_size)]
        assert {tuple(rows.shape) for rows in ranked} == {(8 // world_size, SEQ_LEN + 1)}
        assert torch.equal(torch.cat(ranked), part.batch(step))


def test_shards_change_nothing(
    case: Case, documents: Callable[..., Any], modules: list[str], tmp_path: Path
) -> None:
    whole = Case(documents(modules), tmp_path)
    pieces = Case(documents([*modules]), tmp_path, shard_tokens=1)
    assert len(pieces.corpus.prepare().train.shards) > 30
    for seq_len in (SEQ_LEN, 5000):
        first, second = whole.stream(seq_len=seq_len), pieces.stream(seq_len=seq_len)
        for step in range(30):
            assert torch.equal(first.batch(step), second.batch(step))


def test_a_far_step_costs_what_a_near_one_does(case: Case) -> None:
    stream = case.stream()
    started = time.perf_counter()
    assert stream.batch(10**12).shape == (8, SEQ_LEN + 1)
    assert time.perf_counter() - started < 1.0


def test_the_interface_of_the_trainer(case: Case) -> None:
    stream = case.stream()
    assert stream.batch(0).dtype == torch.int64
    assert stream.num_tokens == len(case.train)
    assert stream.tokenizer.vocab_size == 257
    assert case.held_out().token_bytes.tolist() == [1] * 256 + [0]
    assert stream.checksum == case.corpus.prepare().checksum
    before = torch.random.get_rng_state()
    stream.batch(1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_whole_held_out_split_is_read_in_order(case: Case) -> None:
    reference = windows(case.validation)
    size = next(size for size in range(4, 40, 4) if len(reference) % size)  # the last one is small
    held_out = case.held_out(batch_size=size)
    count = len(reference) // size + 1
    assert held_out.num_batches == count
    assert held_out.num_sequences == len(reference)
    assert [row for n in range(count) for row in held_out.batch(n).tolist()] == reference
    last = [held_out.batch(count - 1, rank=rank, world_size=4) for rank in range(4)]
    assert torch.equal(torch.cat(last), held_out.batch(count - 1))
    with pytest.raises(IndexError, match=f"batch {count} of {count} batches"):
        held_out.batch(count)


def test_a_few_held_out_batches_are_spread_over_the_split(case: Case) -> None:
    held_out = case.held_out(batch_size=4, num_batches=2)
    reference = windows(case.validation)
    rows = [row for n in range(2) for row in held_out.batch(n).tolist()]
    assert rows == [reference[n * len(reference) // 8] for n in range(8)]
    assert case.held_out(num_batches=10**6).num_batches == case.held_out().num_batches


def test_a_split_smaller_than_a_batch_gives_one_small_batch(case: Case) -> None:
    held_out = case.held_out(batch_size=10_000)
    assert held_out.num_batches == 1
    assert held_out.batch(0).tolist() == windows(case.validation)
    ranked = [held_out.batch(0, rank=rank, world_size=100) for rank in range(100)]
    assert torch.equal(torch.cat(ranked), held_out.batch(0))
    assert ranked[-1].shape == (0, SEQ_LEN + 1)


def test_nothing_works_before_prepare(case: Case) -> None:
    for part in (
        TokenStream(case.corpus, seq_len=8, batch_size=1, seed=0),
        HeldOut(case.corpus, seq_len=8, batch_size=1),
    ):
        with pytest.raises(DataError, match=r"call prepare\(\) first"):
            part.batch(0)
        with pytest.raises(DataError, match=r"call prepare\(\) first"):
            _ = part.num_sequences


def test_a_corpus_shorter_than_one_sequence_is_refused(
    documents: Callable[..., Any], tmp_path: Path
) -> None:
    case = Case(documents(["eleven chars"] * 2), tmp_path)
    case.stream(seq_len=25)
    with pytest.raises(
        DataError, match=r"26 training tokens, and seq_len=26 needs 27\.\nGive more text"
    ):
        case.stream(seq_len=26)
    with pytest.raises(DataError, match=r"0 tokens in 0 documents(.|\n)*validation_fraction"):
        case.held_out()


def test_impossible_batches_and_sizes_are_refused(case: Case) -> None:
    stream = case.stream()
    with pytest.raises(ValueError, match=r"batch_size=8 (.|\n)*world_size=3(.|\n)*batch_size=9"):
        stream.batch(0, world_size=3)
    with pytest.raises(ValueError, match=r"rank=2 is not one of world_size=2"):
        stream.batch(0, rank=2, world_size=2)
    with pytest.raises(ValueError, match="step=-1"):
        stream.batch(-1)
    for seq_len, batch_size in ((0, 1), (1, 0)):
        with pytest.raises(DataError, match="=0 must be at least 1"):
            TokenStream(case.corpus, seq_len=seq_len, batch_size=batch_size, seed=0)
    with pytest.raises(DataError, match="num_batches=0 must be at least 1"):
        HeldOut(case.corpus, seq_len=1, batch_size=1, num_batches=0)

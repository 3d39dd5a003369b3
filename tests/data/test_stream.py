"""Streams of tokens: shuffling, interleaving, growth, damaged files."""

import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fidgpt import data, optim
from fidgpt.data.mixture import Interleaving, exact_counts
from fidgpt.data.order import derive_key, permute

SEQ_LEN = 32


def tokens_of(split: data.Split, bounds: NDArray[np.int64]) -> list[int]:
    return split.read(bounds[:1], length=int(bounds[-1] - bounds[0])).tokens[0].tolist()


class Case:
    """A corpus of bytes, with its splits as plain lists for reference."""

    def __init__(self, source: Any, cache: Path, *, shard_tokens: int = 10**9) -> None:
        options: dict[str, Any] = {"validation_fraction": 0.2, "shard_tokens": shard_tokens}
        self.corpus = data.Corpus(
            source, tokenizer=data.ByteTokenizer(), cache_dir=cache, **options
        )
        prepared = self.corpus.prepare(show_progress=False)
        self.train, self.validation = (
            [t for bounds in split.document_bounds(at_once=99) for t in tokens_of(split, bounds)]
            for split in (prepared.train, prepared.validation)
        )

    def stream(
        self, *, batch_size: int = 8, seed: int = 1, seq_len: int = SEQ_LEN
    ) -> data.TokenStream:
        stream = data.TokenStream(self.corpus, seq_len=seq_len, batch_size=batch_size, seed=seed)
        stream.prepare(show_progress=False)
        return stream

    def held_out(self, **options: Any) -> data.HeldOut:
        settings: dict[str, Any] = {"seq_len": SEQ_LEN, "batch_size": 8} | options
        held_out = data.HeldOut(self.corpus, **settings)
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
    return Case(data.TextFiles(folder), tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
def test_a_batch_depends_on_nothing_but_the_step(case: Case) -> None:
    first, second = case.stream(), case.stream()
    expected = [first.batch(step).tokens for step in range(200)]
    for step in random.Random(0).sample(range(200), 200):
        assert torch.equal(second.batch(step).tokens, expected[step])
    started = time.perf_counter()
    assert first.batch(10**12).tokens.shape == (8, SEQ_LEN + 1)
    assert time.perf_counter() - started < 1.0
    assert not torch.equal(case.stream(seed=2).batch(0).tokens, expected[0])


@pytest.mark.slow
def test_every_window_comes_once_an_epoch_in_another_order(case: Case) -> None:
    stream = case.stream(batch_size=1)
    reference = windows(case.train)
    assert stream.num_sequences == len(reference)
    orders = []
    for epoch in range(2):
        steps = range(epoch * len(reference), (epoch + 1) * len(reference))
        orders.append([stream.batch(step).tokens[0].tolist() for step in steps])
        assert sorted(orders[-1]) == sorted(reference)
    assert orders[0] != orders[1]
    assert reference not in orders


@pytest.mark.slow
def test_batch_size_does_not_change_the_order_and_batches_run_across_epochs(case: Case) -> None:
    single, batched = case.stream(batch_size=1), case.stream(batch_size=7)
    assert batched.num_sequences % 7
    for step in range(0, 3 * batched.num_sequences // 7, 5):
        rows = [single.batch(7 * step + row).tokens for row in range(7)]
        assert torch.equal(batched.batch(step).tokens, torch.cat(rows))


def test_the_whole_held_out_split_is_read_in_order(case: Case) -> None:
    reference = windows(case.validation)
    size = next(size for size in range(4, 40, 4) if len(reference) % size)  # the last one is small
    held_out = case.held_out(batch_size=size)
    count = len(reference) // size + 1
    assert held_out.num_batches == count
    assert held_out.num_sequences == len(reference)
    assert [row for n in range(count) for row in held_out.batch(n).tokens.tolist()] == reference
    last = [held_out.batch(count - 1, rank=rank, world_size=4).tokens for rank in range(4)]
    assert torch.equal(torch.cat(last), held_out.batch(count - 1).tokens)


def test_a_few_held_out_batches_are_spread_over_the_split(case: Case) -> None:
    held_out = case.held_out(batch_size=4, num_batches=2)
    reference = windows(case.validation)
    rows = [row for n in range(2) for row in held_out.batch(n).tokens.tolist()]
    assert rows == [reference[n * len(reference) // 8] for n in range(8)]
    assert case.held_out(num_batches=10**6).num_batches == case.held_out().num_batches


def test_a_corpus_shorter_than_one_sequence_is_refused(documents, tmp_path):
    case = Case(documents(["eleven chars"] * 2), tmp_path)
    case.stream(seq_len=25)
    with pytest.raises(
        data.DataError, match=r"26 training tokens, and seq_len=26 needs 27\.\nGive more text"
    ):
        case.stream(seq_len=26)
    with pytest.raises(data.DataError, match=r"0 tokens in 0 documents(.|\n)*validation_fraction"):
        case.held_out()


def whole(size: int, *, seed: int = 0, epoch: int = 0) -> np.ndarray:
    key = derive_key(seed, "data", epoch)
    return permute(np.arange(size, dtype=np.uint64), size=size, key=key)


@pytest.mark.parametrize("size", [1, 2, 3, 255, 256, 257, 65_537])
def test_it_is_a_bijection_of_every_size(size: int) -> None:
    assert sorted(whole(size).tolist()) == list(range(size))


def test_the_order_never_changes_between_versions() -> None:
    """A run that is resumed by a later version must read on in the same order."""
    assert whole(1000, seed=5)[:8].tolist() == [413, 284, 184, 333, 104, 708, 941, 557]


@pytest.mark.slow
@pytest.mark.parametrize("size", [20, 100])
def test_every_place_is_equally_likely_over_the_keys(size: int) -> None:
    """Chi-square of where position 0 goes over 1,000 keys, against 5 standard deviations."""
    zero = np.zeros(1, dtype=np.uint64)
    places = [permute(zero, size=size, key=derive_key(0, n))[0] for n in range(1000)]
    counts = np.bincount(np.array(places, dtype=np.int64), minlength=size)
    expected = 1000 / size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < (size - 1) + 5 * np.sqrt(2 * (size - 1))


def test_a_domain_beyond_32_bits_is_mixed_too() -> None:
    size = 10**15
    places = permute(np.arange(1000, dtype=np.uint64), size=size, key=derive_key(0))
    assert len(set(places.tolist())) == 1000
    assert places.max() < size
    assert 0.4 < places.mean() / size < 0.6


MakeStream = Callable[..., data.TokenStream]
END = 256


@pytest.fixture
def texts() -> list[str]:
    """Each begins with a word of its own; some are longer than several sequences."""
    return [f"{n:03}" + "abcdefg " * (n * 7 % 23) for n in range(60)]


def epoch_of(stream: data.TokenStream, epoch: int) -> list[int]:
    """All tokens of an epoch that windows hold, in the order of the windows in the text."""
    packed = data.shuffle_and_concatenate(
        stream.corpus.prepare(), seq_len=stream.seq_len, seed=stream.seed
    )
    rows = packed.read(np.arange(packed.num_sequences), epoch=epoch).tokens.tolist()
    assert all(row[-1] == following[0] for row, following in itertools.pairwise(rows))
    return [token for row in rows for token in row[:-1]] + rows[-1][-1:]


def test_an_epoch_is_all_documents_in_an_order_of_its_own(stream_of, texts):
    stream = stream_of(texts, packing=data.shuffle_and_concatenate)
    orders = []
    for epoch in range(3):
        tokens = epoch_of(stream, epoch)
        *whole, _ = "".join("|" if token == END else chr(token) for token in tokens).split("|")
        orders.append(whole)
        assert 0 <= len("".join(texts)) + len(texts) - len(tokens) < stream.seq_len
        assert len(whole) > 55
        assert len({*whole} & {*texts}) == len(whole)
    assert orders[0] != orders[1] != orders[2]


def test_seed_and_packing_decide_what_is_read(stream_of: MakeStream, texts: list[str]) -> None:
    plain, stream, other = (
        stream_of(texts),
        stream_of(texts, packing=data.shuffle_and_concatenate),
        stream_of(texts, packing=data.shuffle_and_concatenate, seed=2),
    )
    assert epoch_of(stream, 0) != epoch_of(other, 0)
    assert stream.checksum != plain.checksum
    assert stream.num_sequences == plain.num_sequences
    with pytest.raises(data.DataError, match="shorter than one sequence"):
        stream_of(["short"], packing=data.shuffle_and_concatenate)


def some_counts(*, number: int) -> list[int]:
    generator = random.Random(number)
    size = generator.choice([1, 2, 3, 4, 7, 12, 24])
    kinds = [0, 1, 2, 3, 5, 40, 1000]
    return [*(generator.choice([*kinds, generator.randrange(3000)]) for _ in range(size)), 1]


@pytest.mark.parametrize("number", range(8))
def test_no_prefix_is_a_whole_sequence_out_of_balance(number: int) -> None:
    counts = np.array(some_counts(number=number))
    size = 2 * int(counts.sum()) + 3
    sources, ranks = Interleaving(counts.tolist())(np.arange(size))
    had = np.cumsum(sources[:, None] == np.arange(len(counts)), axis=0)
    # In whole numbers, so that "less than one" is not a matter of rounding.
    ahead = had * counts.sum() - np.arange(1, size + 1)[:, None] * counts
    assert np.abs(ahead).max() < counts.sum()
    assert (had[np.arange(size), sources] - 1 == ranks).all()


@pytest.mark.parametrize("number", range(2))
def test_positions_are_found_without_those_before(number: int) -> None:
    """Also in an order that is made for a given length."""
    counts = some_counts(number=number)
    order = Interleaving(counts)
    whole = order(np.arange(10_000))
    for place in random.Random(number).sample(range(10_000), 50):
        assert [int(x[0]) for x in order(np.array([place]))] == [int(x[place]) for x in whole]
        before = np.bincount(whole[0][:place], minlength=len(counts))
        assert order.before(place).tolist() == before.tolist()
    for length in (0, 1, 50, 9_000):
        short, places = Interleaving(counts, length=length), np.arange(length)
        assert [x.tolist() for x in short(places)] == [x[:length].tolist() for x in whole]
        assert short.before(length).tolist() == order.before(length).tolist()


def test_interleaved_order_never_changes_between_versions() -> None:
    assert Interleaving([5, 3, 1])(np.arange(9))[0].tolist() == [0, 1, 0, 0, 1, 0, 1, 0, 2]
    far = Interleaving([3, 1])(np.array([4 * 10**15 + 1]))  # costs what a near one does
    assert int(far[1][0]) in (3 * 10**15 + 1, 10**15)


def test_weights_are_exact_up_to_five_decimals() -> None:
    assert exact_counts({"a": 0.7, "b": 0.2, "c": 0.1}) == {"a": 7, "b": 2, "c": 1}
    assert exact_counts({"a": 3, "b": 0, "c": 1}) == {"a": 3, "b": 0, "c": 1}
    assert exact_counts({"a": 0.12345, "b": 0.87655}) == {"a": 2469, "b": 17531}
    weights = {"a": 2**0.5, "b": 3**0.5, "c": 5**0.5}
    counts = exact_counts(weights)
    assert sum(counts.values()) == 100_000
    for name, weight in weights.items():
        assert abs(counts[name] / 100_000 - weight / sum(weights.values())) < 1e-5


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "all zero"),
        ({"a": -1.0, "b": 2}, "weight -1.0 of 'a' must be 0 or more"),
        ({"a": 1.0, "b": 1e-9}, "less than one sequence in 100,000"),
    ],
)
def test_impossible_weights_are_refused(weights: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exact_counts(weights)


GROWING_SEQ_LEN = 8


class Counting(data.IndexedStream):
    """Sequence n holds the tokens from n * seq_len on."""

    batch_size = 12

    def prepare(self, *, show_progress: bool = True) -> None:
        pass

    def rows(self, indices: NDArray[np.int64]) -> data.Batch:
        rows = indices[:, None] * GROWING_SEQ_LEN + np.arange(GROWING_SEQ_LEN + 1)
        return data.Batch(torch.from_numpy(rows))

    @property
    def tokenizer(self) -> data.Tokenizer:
        return data.ByteTokenizer().build([])

    @property
    def checksum(self) -> str:
        return "counting"


def rise(steps: int) -> optim.Phases:
    """From nothing to all in so many steps."""
    return optim.Phases(num_steps=100, shape=optim.NoDecay(), warmup=steps)


def growing_batch() -> data.GrowingBatch:
    return data.GrowingBatch(Counting(), batch_size=12, schedule=rise(6), multiple_of=4)


def growing_sequence() -> data.GrowingSequence:
    return data.GrowingSequence(
        Counting(), seq_len=GROWING_SEQ_LEN, schedule=rise(8), min_seq_len=2
    )


def test_a_batch_grows_in_whole_multiples_and_leaves_no_sequence_out() -> None:
    stream = growing_batch()
    batches = [stream.batch(step).tokens for step in range(8)]
    assert [len(batch) for batch in batches] == [4, 4, 4, 8, 8, 12, 12, 12]
    assert torch.equal(torch.cat(batches)[:, 0], torch.arange(64) * GROWING_SEQ_LEN)
    assert stream.full_batches(8) == 64 / 12


@pytest.mark.parametrize("make", [growing_batch, growing_sequence])
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_rows_of_growing_streams(make, world_size) -> None:
    whole = make()
    ranks = [make() for _ in range(world_size)]
    for step in range(9):
        rows = [one.batch(step, rank=i, world_size=world_size) for i, one in enumerate(ranks)]
        assert torch.equal(data.Batch.cat(rows).tokens, whole.batch(step).tokens)


def test_sequences_double_and_a_batch_keeps_its_tokens() -> None:
    stream = growing_sequence()
    lengths = [stream.length(step) for step in range(9)]
    assert lengths == [2, 2, 2, 4, 4, 4, 4, 8, 8]
    for step, length in enumerate(lengths):
        batch = stream.batch(step).tokens
        assert batch.shape == (12 * GROWING_SEQ_LEN // length, length + 1)
        whole = Counting().batch(step).tokens
        assert torch.equal(batch[:, :-1].reshape(12, GROWING_SEQ_LEN), whole[:, :-1])
        assert torch.equal(batch[:, 1:].reshape(12, GROWING_SEQ_LEN), whole[:, 1:])
    assert stream.full_batches(9) == 9.0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=12 is not a multiple of multiple_of=5"):
        data.GrowingBatch(Counting(), batch_size=12, schedule=rise(4), multiple_of=5)
    for length in (3, 16):
        with pytest.raises(ValueError, match=f"min_seq_len={length} must be seq_len=8 divided"):
            data.GrowingSequence(Counting(), seq_len=8, schedule=rise(4), min_seq_len=length)
    with pytest.raises(data.DataError, match=r"4 sequences has too few for 8 .*\n.*multiple_of"):
        growing_batch().batch(0, rank=0, world_size=8)


def test_shares_move_along_the_schedule() -> None:
    first = {"web": 3, "code": 1}
    stages = data.annealed(begin=first, end={"code": 1}, schedule=rise(99), num_steps=100, every=10)
    streams = {"web": Counting(), "code": Counting()}
    mixture = data.Mixture(streams, batch_size=12, weights=first, stages=stages)
    assert [stage.begin for stage in stages] == list(range(0, 100, 10))
    for step, done in ((0, 1), (55, 51), (99, 91)):
        assert float(mixture.shares(step)["web"]) == pytest.approx(0.75 * (1 - done / 99), abs=1e-5)
    with pytest.raises(ValueError, match="negative"):
        data.annealed(begin={"web": -1}, end={"web": 1}, schedule=rise(9), num_steps=10, every=1)

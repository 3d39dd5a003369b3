"""Batches that grow in sequences, sequences that grow in tokens, and shares that move."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fidgpt.data import (
    ByteTokenizer,
    GrowingBatch,
    GrowingSequence,
    IndexedStream,
    Mixture,
    Prefetch,
    Stage,
    Tokenizer,
    annealed,
)
from fidgpt.optim import NoDecay, Phases

SEQ_LEN = 8


class Counting(IndexedStream):
    """Sequence n holds the tokens from n * seq_len on."""

    batch_size = 12

    def prepare(self, *, show_progress: bool = True) -> None:
        pass

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return indices[:, None] * SEQ_LEN + np.arange(SEQ_LEN + 1)

    @property
    def tokenizer(self) -> Tokenizer:
        return ByteTokenizer().build([])

    @property
    def checksum(self) -> str:
        return "counting"


def rise(steps: int) -> Phases:
    """From nothing to all in so many steps."""
    return Phases(num_steps=100, shape=NoDecay(), warmup=steps)


def growing_batch() -> GrowingBatch:
    return GrowingBatch(Counting(), batch_size=12, schedule=rise(6), multiple_of=4)


def growing_sequence() -> GrowingSequence:
    return GrowingSequence(Counting(), seq_len=SEQ_LEN, schedule=rise(8), min_seq_len=2)


def test_a_batch_grows_in_whole_multiples_and_leaves_no_sequence_out() -> None:
    stream = growing_batch()
    batches = [stream.batch(step) for step in range(8)]
    assert [len(batch) for batch in batches] == [4, 4, 4, 8, 8, 12, 12, 12]
    assert torch.equal(torch.cat(batches)[:, 0], torch.arange(64) * SEQ_LEN)
    assert stream.full_batches(8) == 64 / 12


def test_any_step_can_be_asked_for_first() -> None:
    expected = [growing_batch().batch(step) for step in range(9)]
    stream = growing_batch()
    for step in (7, 2, 8, 0):
        assert torch.equal(stream.batch(step), expected[step])


@pytest.mark.parametrize("make", [growing_batch, growing_sequence])
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_ranks_rows_are_those_of_one(make, world_size) -> None:
    whole = make()
    ranks = [make() for _ in range(world_size)]
    for step in range(9):
        rows = [one.batch(step, rank=i, world_size=world_size) for i, one in enumerate(ranks)]
        assert torch.equal(torch.cat(rows), whole.batch(step))


def test_sequences_double_and_a_batch_keeps_its_tokens() -> None:
    stream = growing_sequence()
    lengths = [stream.length(step) for step in range(9)]
    assert lengths == [2, 2, 2, 4, 4, 4, 4, 8, 8]
    for step, length in enumerate(lengths):
        batch = stream.batch(step)
        assert batch.shape == (12 * SEQ_LEN // length, length + 1)
        whole = Counting().batch(step)
        assert torch.equal(batch[:, :-1].reshape(12, SEQ_LEN), whole[:, :-1])
        assert torch.equal(batch[:, 1:].reshape(12, SEQ_LEN), whole[:, 1:])
    assert stream.full_batches(9) == 9.0


def test_both_grow_at_once_and_are_made_ahead() -> None:
    both = GrowingSequence(growing_batch(), seq_len=SEQ_LEN, schedule=rise(4), min_seq_len=4)
    ahead = Prefetch(both)
    for step in range(7):
        assert torch.equal(ahead.batch(step), both.batch(step))
    assert ahead.full_batches(7) == growing_batch().full_batches(7)


def test_who_counts_steps_while_another_thread_does_counts_alike() -> None:
    rising, asked_meanwhile = rise(6), [5]

    def schedule(step: int) -> float:
        if step == 0 and asked_meanwhile:
            stream.batch(asked_meanwhile.pop())
        return rising(step)

    stream = GrowingBatch(Counting(), batch_size=12, schedule=schedule, multiple_of=4)
    for step in (3, 7, 9):
        assert torch.equal(stream.batch(step), growing_batch().batch(step))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size=12 is not a multiple of multiple_of=5"):
        GrowingBatch(Counting(), batch_size=12, schedule=rise(4), multiple_of=5)
    for length in (3, 16):
        with pytest.raises(ValueError, match=f"min_seq_len={length} is not seq_len=8 halved"):
            GrowingSequence(Counting(), seq_len=8, schedule=rise(4), min_seq_len=length)
    with pytest.raises(ValueError, match=r"by 4 sequences.*\n.*multiple_of to a multiple of 8"):
        growing_batch().batch(50, rank=0, world_size=8)


def test_stages_begin_at_their_steps_while_batches_grow() -> None:
    mixture = Mixture(
        {"one": Counting(), "two": Counting()},
        batch_size=12,
        weights={"one": 1},
        stages=[Stage(begin=5, weights={"two": 1}), Stage(begin=7, weights={"one": 1})],
    )
    stream = GrowingBatch(mixture, batch_size=12, schedule=rise(6), multiple_of=4)
    stream.prepare()
    firsts = [stream.batch(step)[:, 0] // SEQ_LEN for step in range(8)]
    read = 4 + 4 + 4 + 8 + 8
    assert torch.equal(torch.cat(firsts[:5]), torch.arange(read))
    assert torch.equal(torch.cat(firsts[5:7]), torch.arange(24))
    assert torch.equal(firsts[7], torch.arange(read, read + 12))
    begun = [(0, 0, {"one": 1}), (5, read, {"two": 1}), (7, read + 24, {"one": 1})]
    assert [Prefetch(stream).stages_begun(steps) for steps in (5, 7, 8)] == [
        begun[:1],
        begun[:2],
        begun,
    ]


def test_shares_move_along_the_schedule() -> None:
    stages = annealed(
        begin={"web": 3, "code": 1}, end={"code": 1}, schedule=rise(99), num_steps=100, every=10
    )
    mixture = Mixture(
        {"web": Counting(), "code": Counting()},
        batch_size=12,
        weights={"web": 3, "code": 1},
        stages=stages,
    )
    assert [stage.begin for stage in stages] == list(range(0, 100, 10))
    assert float(mixture.shares(0)["web"]) == pytest.approx(0.75 * (1 - 1 / 99), abs=1e-5)
    assert float(mixture.shares(55)["web"]) == pytest.approx(0.75 * (1 - 51 / 99), abs=1e-5)
    assert mixture.shares(99)["web"] == pytest.approx(0.75 * (1 - 91 / 99), abs=1e-5)
    with pytest.raises(ValueError, match="negative"):
        annealed(begin={"web": -1}, end={"web": 1}, schedule=rise(9), num_steps=10, every=1)

"""The order of tokens for any number of ranks, resumes and processes, and prefetching."""

import hashlib
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import Python, python_path
from torch import Tensor

from fidgpt import data

NAMES = ["<a>", "<b>", "<c>"]
HERE = Path(__file__).parent
BATCH_SIZE = 8
NUM_STEPS = 24
# Where a run was stopped, and with how many ranks it then went on.
PARTS = [(0, 1), (3, 3), (4, 2), (11, 8), (17, 1), (20, 2)]


class Case:
    """Texts on the disk, and streams over them that share no object."""

    def __init__(self, folder: Path, texts: Sequence[str]) -> None:
        self.folder = folder
        for number, text in enumerate(texts):
            part = folder / f"text{number % 3}"
            part.mkdir(exist_ok=True)
            (part / f"{number:02d}.txt").write_text(text[:900], encoding="utf-8")

    def stream(
        self,
        number: int,
        *,
        packing: data.Packing = data.concatenate,
        fim: float = 0.0,
    ) -> data.TokenStream:
        prefix, suffix, middle = NAMES
        part = data.FillInTheMiddle(rate=fim, prefix=prefix, suffix=suffix, middle=middle)
        corpus = data.Corpus(
            data.TextFiles(self.folder / f"text{number}"),
            tokenizer=data.ByteTokenizer(special_tokens=NAMES),
            validation_fraction=0.1,
            cache_dir=self.folder / "cache",
            shard_tokens=2000,
        )
        return data.TokenStream(
            corpus,
            seq_len=64,
            batch_size=BATCH_SIZE,
            seed=number,
            packing=packing,
            transforms=[part] if fim else [],
        )

    def mixture(self) -> data.Mixture:
        """Of all kinds, with stages whose ends are not where runs are stopped."""
        streams = {
            "plain": self.stream(0),
            "packed": self.stream(1, packing=data.best_fit),
            "filled": self.stream(2, packing=data.shuffle_and_concatenate, fim=0.6),
        }
        return data.Mixture(
            streams,
            batch_size=BATCH_SIZE,
            weights={"plain": 0.61, "packed": 0.28, "filled": 0.11},
            stages=[
                data.Stage(begin=6, weights={"plain": 1, "packed": 1, "filled": 3}),
                data.Stage(begin=18, weights={"packed": 1}),
            ],
        )


KINDS: dict[str, Callable[[Case], data.TrainingStream]] = {
    "concatenated": lambda case: case.stream(0),
    "best fit": lambda case: case.stream(1, packing=data.best_fit),
    "shuffled": lambda case: case.stream(2, packing=data.shuffle_and_concatenate),
    "fill in the middle": lambda case: case.stream(0, packing=data.best_fit, fim=0.6),
    "mixture": lambda case: case.mixture(),
}


@pytest.fixture(scope="module")
def case(modules: list[str], tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("order"), modules[:24])


def signed(batch: data.Batch) -> Tensor:
    """The tokens, and the complement of those that do not count in the loss."""
    return torch.where(batch.mask, batch.tokens, ~batch.tokens)


def prepared(stream: data.TrainingStream) -> data.TrainingStream:
    stream.prepare(show_progress=False)
    return stream


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, case: Case) -> Callable[[], data.TrainingStream]:
    """Make a new stream of one kind."""
    return lambda: KINDS[request.param](case)


@pytest.fixture
def expected(make: Callable[[], data.TrainingStream]) -> list[Tensor]:
    """What one process reads that never stops and makes nothing ahead."""
    stream = prepared(make())
    return [signed(stream.batch(step)) for step in range(NUM_STEPS)]


def read_in_parts(make: Callable[[], data.TrainingStream]) -> list[Tensor]:
    """What is read if a run stops often; each rank has a stream of its own."""
    batches = []
    for (first, world_size), (stop, _) in itertools.pairwise([*PARTS, (NUM_STEPS, 1)]):
        ranks = [prepared(make()) for _ in range(world_size)]
        for step in range(first, stop):
            ranked = [s.batch(step, rank=r, world_size=world_size) for r, s in enumerate(ranks)]
            batches.append(signed(data.Batch.cat(ranked)))
    return batches


@pytest.mark.slow
def test_stops_and_ranks_change_no_token(make, expected):
    assert torch.equal(torch.stack(read_in_parts(make)), torch.stack(expected))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "num_workers"),
    [(5, 4), *(pytest.param(n, n, marks=pytest.mark.long) for n in (1, 2))],
)
def test_batches_made_ahead_change_no_token(make, expected, depth, num_workers):
    def ahead() -> data.Prefetch:
        return data.Prefetch(make(), depth=depth, num_workers=num_workers)

    assert torch.equal(torch.stack(read_in_parts(ahead)), torch.stack(expected))


def test_no_two_kinds_read_the_same(case: Case) -> None:
    """Otherwise the comparisons above would prove little."""
    firsts = [signed(prepared(make(case)).batch(0)) for make in KINDS.values()]
    assert len({tuple(batch.flatten().tolist()) for batch in firsts}) == len(KINDS)


ELSEWHERE = """
import hashlib, sys
from pathlib import Path
from test_order import Case, prepared, signed, NUM_STEPS
stream = prepared(Case(Path(sys.argv[1]), []).mixture())
tokens = b"".join(signed(stream.batch(step)).numpy().tobytes() for step in range(NUM_STEPS))
print(hashlib.sha256(tokens).hexdigest())
"""


@pytest.mark.xdist_group("prepare")
def test_other_processes_read_the_same(case: Case, tmp_path: Path) -> None:
    """With other hashes of texts, by which Python orders sets: those of a server are its own."""
    stream = prepared(case.mixture())
    tokens = b"".join(signed(stream.batch(step)).numpy().tobytes() for step in range(NUM_STEPS))
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    variables = {"PYTHONHASHSEED": "1", "PYTHONPATH": python_path(HERE, HERE.parent)}
    command = [str(tmp_path / "elsewhere.py"), str(case.folder)]
    forked = Python(*command, output=tmp_path / "output", environment=os.environ | variables)
    assert forked.end(seconds=600) == 0, forked.output
    assert forked.output.strip() == hashlib.sha256(tokens).hexdigest()


class Counting(data.TrainingStream):
    """Batches that hold their step; some steps cannot be read."""

    tokenizer = checksum = None  # pyright: ignore

    def __init__(self, *, broken: frozenset[int] = frozenset()) -> None:
        self.broken = broken
        self.requested: list[int] = []
        self.threads: set[str] = set()

    def prepare(self, *, show_progress: bool = True) -> None: ...

    def batch(self, step, *, rank=0, world_size=1):
        self.requested.append(step)
        self.threads.add(threading.current_thread().name)
        if step in self.broken:
            raise OSError(f"step {step} is on a bad disk")
        return data.Batch(torch.full((1, 2), 100 * step + 10 * rank + world_size))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize(("depth", "num_workers"), [(1, 1), (3, 1), (3, 4)])
def test_batches_are_the_streams_own_in_any_order_of_steps(stream_of, modules, depth, num_workers):
    stream = stream_of(modules[:10])
    ahead = data.Prefetch(stream, depth=depth, num_workers=num_workers)
    ahead.prepare(show_progress=False)
    states = random_states()
    for step in [*range(20), 7, 8, 9, 3, *random.Random(0).choices(range(50), k=20)]:
        assert ahead.batch(step).tokens.equal(stream.batch(step).tokens)
    for rank in range(4):
        ranked, own = (s.batch(5, rank=rank, world_size=4).tokens for s in (ahead, stream))
        assert torch.equal(ranked, own)
    assert ahead.checksum == stream.checksum
    assert ahead.tokenizer is stream.tokenizer
    assert random_states() == states


def random_states() -> tuple[Any, ...]:
    numpy = np.random.get_state(legacy=False)["state"]["key"].tolist()
    return torch.random.get_rng_state().tolist(), numpy, random.getstate()


def test_the_next_batches_are_made_ahead_and_each_once() -> None:
    stream = Counting()
    ahead = data.Prefetch(stream, depth=3)
    ahead.batch(4, rank=1, world_size=2)
    wait_until(lambda: len(stream.requested) == 4)
    assert stream.requested == [4, 5, 6, 7]
    for step in range(5, 10):
        assert ahead.batch(step, rank=1, world_size=2).tokens[0, 0] == 100 * step + 12
    wait_until(lambda: len(stream.requested) == 9)
    assert stream.requested == list(range(4, 13))
    assert stream.threads == {"prefetch_0"}


def test_an_error_is_raised_at_its_step_and_later_steps_are_read() -> None:
    ahead = data.Prefetch(Counting(broken=frozenset({2, 3})), depth=4)
    assert [int(ahead.batch(step).tokens[0, 0]) for step in (0, 1)] == [1, 101]
    for step in (2, 3, 3):
        with pytest.raises(OSError, match=f"step {step} is on a bad disk"):
            ahead.batch(step)
    assert int(ahead.batch(4).tokens[0, 0]) == 401

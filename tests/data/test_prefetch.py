"""Prefetching: the same batches, errors at their step, and an exit that does not hang."""

import gc
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Int64
from torch import Tensor

from fidgpt.data import ByteTokenizer, Prefetch, Tokenizer, TrainingStream


class Counting(TrainingStream):
    """Batches that hold their step; some steps cannot be read."""

    def __init__(self, *, broken: frozenset[int] = frozenset()) -> None:
        self.broken = broken
        self.requested: list[int] = []
        self.threads: set[str] = set()

    def prepare(self, *, show_progress: bool = True) -> None: ...

    def batch(
        self, step: int, *, rank: int = 0, world_size: int = 1
    ) -> Int64[Tensor, "rows window"]:
        self.requested.append(step)
        self.threads.add(threading.current_thread().name)
        if step in self.broken:
            raise OSError(f"step {step} is on a bad disk")
        return torch.full((1, 2), 100 * step + 10 * rank + world_size)

    @property
    def tokenizer(self) -> Tokenizer:
        return ByteTokenizer()

    @property
    def checksum(self) -> str:
        return "abc"


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize(("depth", "num_workers"), [(1, 1), (3, 1), (3, 4)])
def test_batches_are_the_streams_own_in_any_order_of_steps(stream_of, modules, depth, num_workers):
    stream = stream_of(modules[:10])
    ahead = Prefetch(stream, depth=depth, num_workers=num_workers)
    ahead.prepare(show_progress=False)
    states = random_states()
    for step in [*range(20), 7, 8, 9, 3, *random.Random(0).choices(range(50), k=20)]:
        assert torch.equal(ahead.batch(step), stream.batch(step))
    for rank in range(4):
        ranked = ahead.batch(5, rank=rank, world_size=4)
        assert torch.equal(ranked, stream.batch(5, rank=rank, world_size=4))
    assert ahead.checksum == stream.checksum
    assert ahead.tokenizer is stream.tokenizer
    assert random_states() == states


def random_states() -> tuple[Any, ...]:
    numpy = np.random.get_state(legacy=False)["state"]["key"].tolist()
    return torch.random.get_rng_state().tolist(), numpy, random.getstate()


def test_the_next_batches_are_made_ahead_and_each_once() -> None:
    stream = Counting()
    ahead = Prefetch(stream, depth=3)
    ahead.batch(4, rank=1, world_size=2)
    wait_until(lambda: len(stream.requested) == 4)
    assert stream.requested == [4, 5, 6, 7]
    for step in range(5, 10):
        assert ahead.batch(step, rank=1, world_size=2)[0, 0] == 100 * step + 12
    wait_until(lambda: len(stream.requested) == 9)
    assert stream.requested == list(range(4, 13))
    assert stream.threads == {"prefetch"}


def test_an_error_is_raised_at_its_step_and_later_steps_are_read() -> None:
    ahead = Prefetch(Counting(broken=frozenset({2, 3})), depth=4)
    assert [int(ahead.batch(step)[0, 0]) for step in (0, 1)] == [1, 101]
    for step in (2, 3, 3):
        with pytest.raises(OSError, match=f"step {step} is on a bad disk"):
            ahead.batch(step)
    assert int(ahead.batch(4)[0, 0]) == 401


def test_the_threads_end_with_the_stream() -> None:
    gc.collect()
    wait_until(lambda: not workers())
    ahead = Prefetch(Counting(), num_workers=3)
    ahead.batch(0)
    assert len(workers()) == 3
    del ahead
    gc.collect()
    wait_until(lambda: not workers())


SCRIPT = """
import os, signal, sys, threading, time
import torch
from fidgpt.data import Prefetch, TrainingStream

class Hanging(TrainingStream):
    tokenizer = checksum = None
    def prepare(self, *, show_progress=True): ...
    def batch(self, step, *, rank=0, world_size=1):
        time.sleep(0 if step < 2 else 3600)
        return torch.zeros(1, 2, dtype=torch.int64)

ahead = Prefetch(Hanging(), depth=1)
ahead.batch(0)
if sys.argv[1] == "interrupt":
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    ahead.batch(1); ahead.batch(2)
"""


@pytest.mark.parametrize(("how", "status"), [("interrupt", -2), ("end", 0)])
def test_neither_ctrl_c_nor_the_end_of_the_program_waits_for_a_batch(how: str, status: int) -> None:
    """The batch that is being made takes an hour; starting on a busy machine may take a minute."""
    command = [sys.executable, "-c", SCRIPT, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == status, done.stderr
    assert ("KeyboardInterrupt" in done.stderr) == (how == "interrupt")


def test_memory_limits_what_is_made_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Counting()
    size = stream.batch(0).nbytes
    stream.requested.clear()
    monkeypatch.setattr("fidgpt.data.prefetch.MAX_BYTES", 5 * size)
    ahead = Prefetch(stream, depth=1000)
    for step in range(3):
        ahead.batch(step)
        wait_until(lambda: len(stream.requested) == step + 6)  # noqa: B023
    assert stream.requested == list(range(8))


@pytest.mark.parametrize(
    "options", [{"depth": 0}, {"num_workers": 0}, {"depth": 10**7}, {"num_workers": 1001}]
)
def test_numbers_out_of_range_are_refused(options: dict[str, int]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name}={value} must be from 1 to 1000"):
        Prefetch(Counting(), **options)

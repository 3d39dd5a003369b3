"""Processes that tokenize, and documents that go through them in order."""

import collections
import contextlib
import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fidgpt.data import tokenizers as encoding
from fidgpt.data.errors import DataError

# Enough documents at a time that handing them over costs nothing.
_BATCH_BYTES = 512 * 1024

Encode = Callable[[list[str]], list[NDArray[np.uint32]]]
_Encoded = list[tuple[bytes, NDArray[np.uint32]]]


@contextlib.contextmanager
def encoding_processes(tokenizer: Path, *, num_processes: int) -> Iterator[Encode]:
    """A function that tokenizes by one of several processes, each with one thread.

    It may be called from as many threads as there are processes. Threads of one process would
    share a lock for every token, so that many of them are hardly faster than a few. The processes
    end with this one, however it ends.

    Args:
      tokenizer: a tokenizer.json.
      num_processes: that are started.
    """
    processes = [_start(tokenizer) for _ in range(num_processes)]
    free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    for process in processes:
        free.put(process)

    def encode(texts: list[str]) -> list[NDArray[np.uint32]]:
        process = free.get()
        try:
            return _ask(process, texts)
        finally:
            free.put(process)

    try:
        yield encode
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            _close(process)


def encoded(
    documents: Iterable[str], encode: Encode, *, num_workers: int
) -> Iterator[tuple[bytes, NDArray[np.uint32]]]:
    """The bytes and the tokens of every document, in order, with a few batches in flight."""

    def encode_with_bytes(texts: list[str]) -> _Encoded:
        return [(t.encode(), ids) for t, ids in zip(texts, encode(texts), strict=True)]

    executor = ThreadPoolExecutor(num_workers, thread_name_prefix="tokenize")
    in_flight: collections.deque[Future[_Encoded]] = collections.deque()
    try:
        for texts in _batches(documents):
            in_flight.append(executor.submit(encode_with_bytes, texts))
            if len(in_flight) > 2 * num_workers:
                yield from in_flight.popleft().result()
        while in_flight:
            yield from in_flight.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def _start(tokenizer: Path) -> subprocess.Popen[bytes]:
    # -P: the folder of the program holds modules that are no concern of anybody's imports.
    return subprocess.Popen(
        [sys.executable, "-P", str(encoding.__file__), str(tokenizer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
        process_group=0,  # so that Ctrl-C is the first process's alone
    )


def _ask(process: subprocess.Popen[bytes], texts: list[str]) -> list[NDArray[np.uint32]]:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(pickle.dumps(texts, protocol=5))
        process.stdin.flush()
        answer: list[bytes] = pickle.load(process.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
        raise DataError(
            f"A process that tokenizes ended with status {process.wait()}; -9 means that it was "
            "killed, perhaps because memory ran out.\nStart again, and it goes on from what was "
            "finished; fewer processes (--num_workers) need less memory."
        ) from error
    return [np.frombuffer(ids, dtype=np.uint32) for ids in answer]


def _close(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    texts: list[str] = []
    size = 0
    for text in documents:
        texts.append(text)
        size += len(text)
        if size >= _BATCH_BYTES:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts

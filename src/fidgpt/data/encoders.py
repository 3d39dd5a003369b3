"""Parallel tokenization of documents, in order, by worker processes."""

import collections
import contextlib
import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fidgpt.data import encoding_process
from fidgpt.data.errors import DataError

# Characters per batch; at this size the cost of passing a batch to a process is negligible.
BATCH_SIZE = 512 * 1024

Encode = Callable[[list[str]], list[NDArray[np.uint32]]]


@dataclass(frozen=True)
class Piece:
    """A document, or a piece of one.

    Attributes:
      text: characters of the piece.
      num_bytes: their number in UTF-8.
      split: index of the split that the document belongs to.
      is_last: whether the document ends here.
    """

    text: str
    num_bytes: int
    split: int
    is_last: bool = True


_Encoded = list[tuple[Piece, NDArray[np.uint32]]]


@contextlib.contextmanager
def encoding_processes(tokenizer: Path, *, num_processes: int) -> Iterator[Encode]:
    """Start worker processes and yield a function that encodes a batch of texts in one of them.

    Up to `num_processes` threads may call it at once. Workers are processes because threads contend
    for a lock on every token, so that many are hardly faster than a few. They exit when this
    process does, even if it is killed.

    Args:
      tokenizer: path of a tokenizer.json.
      num_processes: number of single-threaded processes.
    """
    free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()

    def encode(texts: list[str]) -> list[NDArray[np.uint32]]:
        process = free.get()
        try:
            return _request(process, texts)
        finally:
            free.put(process)

    with contextlib.ExitStack() as stack:
        for _ in range(num_processes):
            process = _start(tokenizer)
            stack.callback(_stop, process)
            free.put(process)
        yield encode


def encode_all(
    pieces: Iterable[Piece], encode: Encode, *, num_workers: int
) -> Iterator[tuple[Piece, NDArray[np.uint32]]]:
    """Yield the pieces and their token ids, in order."""

    def encode_texts(batch: list[Piece]) -> _Encoded:
        return list(zip(batch, encode([piece.text for piece in batch]), strict=True))

    executor = ThreadPoolExecutor(num_workers, thread_name_prefix="tokenize")
    in_flight: collections.deque[Future[_Encoded]] = collections.deque()
    try:
        for batch in _batches(pieces):
            in_flight.append(executor.submit(encode_texts, batch))
            if len(in_flight) > 2 * num_workers:
                yield from in_flight.popleft().result()
        while in_flight:
            yield from in_flight.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def _start(tokenizer: Path) -> subprocess.Popen[bytes]:
    # -P: otherwise modules beside the script could shadow those that its imports import.
    return subprocess.Popen(
        [sys.executable, "-P", str(encoding_process.__file__), str(tokenizer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
        process_group=0,  # so that Ctrl-C reaches the main process only
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(BrokenPipeError), process:  # closes its pipes and waits for it
        pass


def _request(process: subprocess.Popen[bytes], texts: list[str]) -> list[NDArray[np.uint32]]:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(pickle.dumps(texts, protocol=5))
        process.stdin.flush()
        ids_of_texts: list[bytes] = pickle.load(process.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
        raise DataError(
            f"A tokenizer process exited with status {process.wait()}; -9 means that it was "
            "killed, perhaps because memory ran out.\nStart again to resume after the last "
            "finished shard; fewer processes (--num_workers) need less memory."
        ) from error
    return [np.frombuffer(ids, dtype=np.uint32) for ids in ids_of_texts]


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

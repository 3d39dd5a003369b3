"""From documents to a prepared corpus: survey, tokenizer, shards, index, one rename."""

import collections
import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.atomic import new_directory, only_one
from fidgpt.data.errors import DataError
from fidgpt.data.prepared import FORMAT_VERSION, INDEX, TOKENIZER, PreparedCorpus, is_prepared
from fidgpt.data.progress import PreparationProgress
from fidgpt.data.shards import SplitWriter, token_dtype
from fidgpt.data.sources import Source
from fidgpt.data.survey import Survey, survey
from fidgpt.data.tokenizer import Tokenizer, TokenizerSpec

DEFAULT_VALIDATION_FRACTION = 0.02
DEFAULT_SHARD_TOKENS = 128 * 1024 * 1024
# Enough documents at a time that handing them over costs nothing.
_BATCH_BYTES = 512 * 1024


def preparation_key(
    source: Source, *, tokenizer: TokenizerSpec, validation_fraction: float, shard_tokens: int
) -> str:
    """A hash of all that decides what a prepared corpus holds."""
    parts = [FORMAT_VERSION, source.identity(), tokenizer.identity()]
    parts += [validation_fraction, shard_tokens]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def prepare_corpus(
    source: Source,
    *,
    tokenizer: TokenizerSpec,
    directory: str | Path,
    validation_fraction: float = DEFAULT_VALIDATION_FRACTION,
    shard_tokens: int = DEFAULT_SHARD_TOKENS,
    num_workers: int | None = None,
    show_progress: bool = True,
) -> PreparedCorpus:
    """Open the corpus in `directory`, writing it first if it is not there.

    About `validation_fraction` of the documents is held out, chosen by a hash of their text.
    `num_workers` threads tokenize, by default one for each core. Several processes may call this
    at once: one works, the others wait. Raises DataError, and then leaves nothing behind.
    """
    if not 0 <= validation_fraction < 1:
        raise DataError(f"validation_fraction={validation_fraction} must be from 0 to below 1.")
    if shard_tokens < 1:
        raise DataError(f"shard_tokens={shard_tokens} must be at least 1.")
    if num_workers is not None and num_workers < 1:
        raise DataError(f"num_workers={num_workers} must be at least 1.")
    directory = Path(directory).expanduser()
    key = preparation_key(
        source,
        tokenizer=tokenizer,
        validation_fraction=validation_fraction,
        shard_tokens=shard_tokens,
    )
    progress = PreparationProgress(show=show_progress)
    with _explaining_disk_errors(directory), _turn_to_write(directory, progress) as my_turn:
        if my_turn:
            with new_directory(directory) as unfinished, progress:
                _write(
                    source,
                    tokenizer=tokenizer,
                    directory=unfinished,
                    validation_fraction=validation_fraction,
                    shard_tokens=shard_tokens,
                    num_workers=num_workers or len(os.sched_getaffinity(0)),
                    key=key,
                    progress=progress,
                )
    corpus = PreparedCorpus(directory)
    if corpus.key != key:
        raise DataError(
            f"{directory} holds a corpus that was prepared from another source, tokenizer or "
            "split.\nName another directory, or delete this one: rm -r " + str(directory)
        )
    return corpus


@contextlib.contextmanager
def _turn_to_write(directory: Path, progress: PreparationProgress) -> Iterator[bool]:
    """False if the corpus is there; true, and then nobody else writes it, if it is not."""
    if is_prepared(directory):
        yield False
        return
    # Asked in this order, because another process may finish between the questions.
    foreign = directory.exists() and not is_prepared(directory)
    if foreign and (not directory.is_dir() or any(directory.iterdir())):
        raise DataError(
            f"{directory} exists and is no prepared corpus, so nothing is written there.\n"
            f"Name a directory that does not exist yet; a prepared corpus that lost its {INDEX} "
            "may be deleted."
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    wait = f"Waiting for another process that prepares {directory}"
    with only_one(directory, on_wait=lambda: progress.say(wait)):
        yield not is_prepared(directory)


def _write(
    source: Source,
    *,
    tokenizer: TokenizerSpec,
    directory: Path,
    validation_fraction: float,
    shard_tokens: int,
    num_workers: int,
    key: str,
    progress: PreparationProgress,
) -> None:
    progress.phase("Reading the text")
    surveyed = survey(
        source.documents(),
        validation_fraction=validation_fraction,
        sample_bytes=tokenizer.sample_bytes,
        on_document=progress.advance,
    )
    progress.phase("Building the tokenizer")
    built = tokenizer.build(surveyed.sample)
    built.save(directory / TOKENIZER)
    tokenizer_files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
    }
    progress.phase("Tokenizing", total=surveyed.num_bytes)
    dtype = token_dtype(built.vocab_size)
    with contextlib.ExitStack() as stack:
        train, validation = (
            stack.enter_context(
                SplitWriter(
                    directory,
                    split=split,
                    dtype=dtype,
                    end_of_text=built.end_of_text,
                    shard_tokens=shard_tokens,
                )
            )
            for split in ("train", "validation")
        )
        for data, tokens in _encode(source.documents(), tokenizer=built, num_workers=num_workers):
            writer = validation if surveyed.is_held_out(data) else train
            writer.add(tokens, num_bytes=len(data))
            progress.advance(len(data))
    _check_unchanged(surveyed, num_bytes=train.num_bytes + validation.num_bytes)
    index = {
        "version": FORMAT_VERSION,
        "key": key,
        "dtype": dtype,
        "vocab_size": built.vocab_size,
        "tokenizer_files": tokenizer_files,
        "splits": {"train": train.summary(), "validation": validation.summary()},
    }
    (directory / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _encode(
    documents: Iterable[str], *, tokenizer: Tokenizer, num_workers: int
) -> Iterator[tuple[bytes, NDArray[np.uint32]]]:
    """The bytes and the tokens of every document, in order, with a few batches in flight."""

    def encode(texts: list[str]) -> list[tuple[bytes, NDArray[np.uint32]]]:
        tokens = tokenizer.encode_batch(texts)
        return [(text.encode(), ids) for text, ids in zip(texts, tokens, strict=True)]

    executor = ThreadPoolExecutor(num_workers, thread_name_prefix="tokenize")
    in_flight: collections.deque[Future[list[tuple[bytes, NDArray[np.uint32]]]]]
    in_flight = collections.deque()
    try:
        for texts in _batches(documents):
            in_flight.append(executor.submit(encode, texts))
            if len(in_flight) > 2 * num_workers:
                yield from in_flight.popleft().result()
        while in_flight:
            yield from in_flight.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


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


def _check_unchanged(surveyed: Survey, *, num_bytes: int) -> None:
    if num_bytes != surveyed.num_bytes:
        raise DataError(
            f"The text changed while it was read: {surveyed.num_bytes} bytes at first, {num_bytes} "
            "later.\nStart again when nothing writes to it."
        )


@contextlib.contextmanager
def _explaining_disk_errors(directory: Path) -> Iterator[None]:
    """Readers explain their own errors, so what is left of the system's comes from writing."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason, remedy = "the disk is full", "Free some space there"
        else:
            reason, remedy = error.strerror or str(error), "Make it writable"
        raise DataError(
            f"Cannot write the prepared corpus to {directory}: {reason}.\n{remedy}, or choose "
            "another place with cache_dir=..., --out, or the environment variable FIDGPT_CACHE."
        ) from error

"""A prepared corpus in a directory: opened if it is there, written once if it is not."""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from fidgpt.data.errors import DataError, removal
from fidgpt.data.preparing.atomic import new_directory, only_one, resumable_directory
from fidgpt.data.preparing.prepared import FORMAT_VERSION, INDEX, PreparedCorpus, is_prepared
from fidgpt.data.preparing.progress import PreparationProgress
from fidgpt.data.preparing.writing import RECORD, write_corpus
from fidgpt.data.sources.sources import Source
from fidgpt.data.tokenizers.tokenizer import TokenizerSpec

DEFAULT_VALIDATION_FRACTION = 0.02
DEFAULT_SHARD_TOKENS = 128 * 1024 * 1024


def check_options(
    *, validation_fraction: float, shard_tokens: int, num_workers: int | None
) -> None:
    """Raises DataError unless a share is held out, and there are shards and processes."""
    if not 0 <= validation_fraction <= 1:
        raise DataError(f"validation_fraction={validation_fraction} must be from 0 to 1.")
    if shard_tokens < 1:
        raise DataError(f"shard_tokens={shard_tokens} must be at least 1.")
    if num_workers is not None and num_workers < 1:
        raise DataError(f"num_workers={num_workers} must be at least 1.")


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
    key: str | None = None,
) -> PreparedCorpus:
    """Open the corpus in `directory`, writing it first if it is not there.

    About `validation_fraction` of the documents is held out, chosen by a hash of their text; all of
    them where it is 1, of which nothing is left to train on.
    Of `num_workers`, by default one for each core, each is a process of one thread, and what is
    written does not depend on them. Memory does not grow with the text. Several processes may
    call this at once: one works, the others wait. Who is stopped, even killed, leaves what was
    finished beside `directory`, and the same call goes on from there. `key` is for who has the
    `preparation_key` of the same already. Raises DataError.
    """
    check_options(
        validation_fraction=validation_fraction, shard_tokens=shard_tokens, num_workers=num_workers
    )
    directory = Path(directory).expanduser()
    if key is None:
        key = preparation_key(
            source,
            tokenizer=tokenizer,
            validation_fraction=validation_fraction,
            shard_tokens=shard_tokens,
        )
    progress = PreparationProgress(show=show_progress)
    with _explaining_disk_errors(directory), _place(directory, key, progress) as unfinished:
        if unfinished is not None:
            with progress:
                write_corpus(
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
            f"split.\nName another directory, or delete this one: {removal(directory)}"
        )
    return corpus


@contextlib.contextmanager
def _place(directory: Path, key: str, progress: PreparationProgress) -> Iterator[Path | None]:
    """Where to write, which is the corpus when the block succeeds; None if it is there already."""
    if is_prepared(directory):
        yield None
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
    with only_one(directory, on_wait=lambda: progress.say(wait)) as alone:
        if is_prepared(directory):
            yield None
            return
        place = (
            resumable_directory(directory, key=key, record=RECORD)
            if alone
            else new_directory(directory)
        )
        with place as unfinished:
            yield unfinished


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

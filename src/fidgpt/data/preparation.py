"""Preparation of data."""

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fidgpt import files as drafts
from fidgpt.data.encoders import Encode, encoded, encoding_processes
from fidgpt.data.errors import DataError, removal
from fidgpt.data.prepared import FORMAT_VERSION, INDEX, TOKENIZER, PreparedCorpus, is_prepared
from fidgpt.data.shards import SplitWriter, Survey, survey, token_dtype
from fidgpt.data.sources import Source
from fidgpt.data.tokenizers import ByteLevelTokenizer, Tokenizer, TokenizerSpec, load_tokenizer
from fidgpt.files import new_directory, only_one, resumable_directory, sync, write_whole

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


_SECONDS_BETWEEN_LINES = 10.0


class PreparationProgress:
    """Phases of work measured in bytes of text, shown on the standard error.

    As a context manager it holds the terminal only inside the block. With `show=False` it is
    silent. Where there is no terminal each phase prints a line when it starts and one every ten
    seconds.
    """

    def __init__(self, *, show: bool) -> None:
        from rich.console import Console  # late: most who import this prepare nothing

        self._console = Console(file=sys.stderr, quiet=not show, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._phase = ""
        self._done = 0
        self._total: int | None = None
        self._line_due = 0.0

    def __enter__(self) -> "PreparationProgress":
        if self._console.is_terminal and not self._console.quiet:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[amount]}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def phase(self, name: str, *, total: int | None = None) -> None:
        """Begin a phase; `total` is its number of bytes, if that is known."""
        self._phase, self._done, self._total = name, 0, total
        if self._bar is None:
            self.say(f"{name} ...")
            self._line_due = time.monotonic() + _SECONDS_BETWEEN_LINES
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total, amount="")

    def advance(self, num_bytes: int) -> None:
        """Say that this many more bytes are done."""
        self._done += num_bytes
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, amount=self._amount())
        elif time.monotonic() > self._line_due:
            self.say(f"{self._phase}: {self._amount()}")
            self._line_due = time.monotonic() + _SECONDS_BETWEEN_LINES

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, markup=False, highlight=False)

    def _amount(self) -> str:
        of_total = "" if self._total is None else f" of {self._total / 1e6:.1f}"
        return f"{self._done / 1e6:.1f}{of_total} MB"


# What was done so far; it is there only while there is something to go on with.
RECORD = "record.json"
_RECORD_VERSION = 1
_SPLITS = ("train", "validation")
# Text between two records: seconds of work, against milliseconds to wait for the disk.
_PIECE_BYTES = 32 * 1024 * 1024
# Text from which on processes are worth their start, of about a tenth of a second.
_PROCESSES_FROM_BYTES = 4 * 1024 * 1024


def write_corpus(
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
    """Write the files of a prepared corpus, going on from the record in `directory`, if any."""
    if not (directory / INDEX).exists():
        begun = _Begun.read(directory)
        if begun is None:
            _remove_files(directory)
            begun = _begin(
                source,
                tokenizer=tokenizer,
                directory=directory,
                validation_fraction=validation_fraction,
                progress=progress,
            )
        with _splits(directory, begun, shard_tokens=shard_tokens) as writers:
            progress.phase("Tokenizing", total=begun.survey.num_bytes)
            _tokenize(source, begun, writers, num_workers=num_workers, progress=progress)
        _check_unchanged(begun.survey, writers, directory)
        write_whole(directory / INDEX, json.dumps(begun.index(writers, key=key), indent=1) + "\n")
    for path in directory.glob(f"{drafts.MARK}*"):  # this process is the only one here
        shutil.rmtree(path)
    (directory / RECORD).unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class _Begun:
    """What is known before the first document is tokenized, and what the splits were then."""

    directory: Path
    survey: Survey
    tokenizer: Tokenizer
    tokenizer_files: dict[str, str]
    splits: dict[str, Any]

    @staticmethod
    def read(directory: Path) -> "_Begun | None":
        """From the record; None where there is none."""
        path = directory / RECORD
        if not path.exists():
            return None
        with _explaining_damage(directory):
            record: Any = json.loads(path.read_text(encoding="utf-8"))
            if record["version"] != _RECORD_VERSION:
                raise ValueError(f"its version is {record['version']}, and not {_RECORD_VERSION}")
            return _Begun(
                directory,
                survey=Survey(**record["survey"], sample=[]),
                tokenizer=load_tokenizer(directory / TOKENIZER),
                tokenizer_files=record["tokenizer_files"],
                splits=record["splits"],
            )

    def write(self, writers: Iterable[SplitWriter]) -> None:
        """Record what the splits are now."""
        surveyed = dataclasses.asdict(self.survey)
        del surveyed["sample"]
        record = {
            "version": _RECORD_VERSION,
            "survey": surveyed,
            "tokenizer_files": self.tokenizer_files,
            "splits": {n: w.record() for n, w in zip(_SPLITS, writers, strict=True)},
        }
        write_whole(self.directory / RECORD, json.dumps(record))

    def index(self, writers: Iterable[SplitWriter], *, key: str) -> dict[str, Any]:
        """The index of the finished corpus."""
        return {
            "version": FORMAT_VERSION,
            "key": key,
            "dtype": token_dtype(self.tokenizer.vocab_size),
            "vocab_size": self.tokenizer.vocab_size,
            "tokenizer_files": self.tokenizer_files,
            "splits": {n: w.summary() for n, w in zip(_SPLITS, writers, strict=True)},
        }


def _begin(
    source: Source,
    *,
    tokenizer: TokenizerSpec,
    directory: Path,
    validation_fraction: float,
    progress: PreparationProgress,
) -> _Begun:
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
    for path in directory.iterdir():
        sync(path)  # before a record or an index vouches for it
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
    }
    return _Begun(
        directory,
        survey=dataclasses.replace(surveyed, sample=[]),
        tokenizer=built,
        tokenizer_files=files,
        splits={},
    )


@contextlib.contextmanager
def _splits(directory: Path, begun: _Begun, *, shard_tokens: int) -> Iterator[list[SplitWriter]]:
    """The writers of both splits, where the record left them."""
    with contextlib.ExitStack() as stack:
        writers = []
        for split in _SPLITS:
            with _explaining_damage(directory):
                writer = SplitWriter(
                    directory,
                    split=split,
                    dtype=token_dtype(begun.tokenizer.vocab_size),
                    end_of_text=begun.tokenizer.end_of_text,
                    shard_tokens=shard_tokens,
                    record=begun.splits.get(split),
                )
            writers.append(stack.enter_context(writer))
        yield writers


def _tokenize(
    source: Source,
    begun: _Begun,
    writers: list[SplitWriter],
    *,
    num_workers: int,
    progress: PreparationProgress,
) -> None:
    """Write the documents that are not written yet, and a record after each piece."""
    train, validation = writers
    done = sum(writer.num_bytes for writer in writers)
    progress.advance(done)
    rest = begun.survey.num_bytes - done
    if rest > _PIECE_BYTES:
        begun.write(writers)
    skipped = sum(writer.num_documents for writer in writers)
    documents = itertools.islice(source.documents(), skipped, None)
    since = 0
    with _encoder(begun, num_bytes=rest, num_processes=num_workers) as encode:
        for data, tokens in encoded(documents, encode, num_workers=num_workers):
            writer = validation if begun.survey.is_held_out(data) else train
            writer.add(tokens, num_bytes=len(data))
            progress.advance(len(data))
            since += len(data)
            if since >= _PIECE_BYTES:
                begun.write(writers)
                since = 0


@contextlib.contextmanager
def _encoder(begun: _Begun, *, num_bytes: int, num_processes: int) -> Iterator[Encode]:
    if num_bytes < _PROCESSES_FROM_BYTES or not isinstance(begun.tokenizer, ByteLevelTokenizer):
        yield begun.tokenizer.encode_batch
        return
    path = begun.directory / TOKENIZER
    with encoding_processes(path, num_processes=num_processes) as encode:
        yield encode


def _check_unchanged(surveyed: Survey, writers: list[SplitWriter], directory: Path) -> None:
    num_bytes = sum(writer.num_bytes for writer in writers)
    if num_bytes != surveyed.num_bytes:
        (directory / RECORD).unlink(missing_ok=True)
        raise DataError(
            f"The text changed while it was read: {surveyed.num_bytes} bytes at first, {num_bytes} "
            "later.\nStart again when nothing writes to it."
        )


def _remove_files(directory: Path) -> None:
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def _explaining_damage(directory: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, FileNotFoundError) as error:
        raise DataError(
            f"What was begun in {directory} cannot be gone on with ({error}).\n"
            f"Delete it ({removal(directory)}) and start again; it is prepared anew from the "
            "source."
        ) from error


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

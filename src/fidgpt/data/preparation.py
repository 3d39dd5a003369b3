"""Preparation of a corpus: from documents to shards of token ids, resumable by shard."""

import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fidgpt.data.encoders import Encode, encode_all, encoding_processes
from fidgpt.data.errors import DataError, delete_command
from fidgpt.data.indexed_directory import FORMAT_VERSION, INDEX
from fidgpt.data.prepared import TOKENIZER, PreparedCorpus, is_prepared
from fidgpt.data.shards import SplitWriter, Survey, survey, token_dtype
from fidgpt.data.sources import Source
from fidgpt.data.tokenizers import ByteLevelTokenizer, Tokenizer, TokenizerSpec, load_tokenizer
from fidgpt.files import atomic_path, only_one, resumable_directory, sync, write_whole

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["prepare_corpus"]


DEFAULT_VALIDATION_FRACTION = 0.02
DEFAULT_SHARD_TOKENS = 128 * 1024 * 1024
# Text from which on processes are worth their start, of about a tenth of a second.
PROCESSES_FROM_BYTES = 4 * 1024 * 1024
# What a preparation that is resumed keeps; removed when it is done.
RECORD = "record.json"
_RECORD_VERSION = 2
_SPLITS = ("train", "validation")
_SECONDS_BETWEEN_LINES = 10.0


def check_options(
    *, validation_fraction: float, shard_tokens: int, num_workers: int | None
) -> None:
    """Raise DataError if an option of the preparation is out of range."""
    if not 0 <= validation_fraction <= 1:
        raise DataError(f"{validation_fraction=} must be from 0 to 1.")
    if shard_tokens < 1:
        raise DataError(f"{shard_tokens=} must be at least 1.")
    if num_workers is not None and num_workers < 1:
        raise DataError(f"{num_workers=} must be at least 1.")


def preparation_key(
    source: Source, *, tokenizer: TokenizerSpec, validation_fraction: float, shard_tokens: int
) -> str:
    """Return a hash of all that decides what a prepared corpus holds."""
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
    """Open the corpus in `directory`, writing it first if it is missing.

    Memory does not grow with the text. Several processes may call this at once: one works, the
    others wait. If it is stopped, even killed, the finished shards are kept beside `directory`, and
    the same call continues after them.

    Args:
      source: the documents.
      tokenizer: how to make the tokenizer.
      directory: where to write.
      validation_fraction: share of the documents that is held out, chosen by a hash of their text.
      shard_tokens: tokens of a shard.
      num_workers: processes; one for each core by default. The output does not depend on it.
      show_progress: whether to report progress on stderr.
      key: the `preparation_key` of these arguments, if it is known already.

    Raises:
      DataError: the text or the tokenizer is wrong, or the directory cannot be written, is damaged
        or holds something else.
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
    if not is_prepared(directory):
        preparation = _Preparation(
            source,
            spec=tokenizer,
            validation_fraction=validation_fraction,
            shard_tokens=shard_tokens,
            num_workers=num_workers or len(os.sched_getaffinity(0)),
            key=key,
            progress=PreparationProgress(show=show_progress),
        )
        with _explaining_disk_errors(directory):
            preparation.make(directory)
    corpus = PreparedCorpus(directory)
    if corpus.key != key:
        raise DataError(
            f"{directory} holds a corpus that was prepared from another source, tokenizer or "
            f"split.\nName another directory, or delete this one: {delete_command(directory)}"
        )
    return corpus


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What is known before the first document is tokenized."""

    survey: Survey
    tokenizer: Tokenizer
    tokenizer_files: dict[str, str]


@dataclasses.dataclass(frozen=True)
class _Preparation:
    """The work of `prepare_corpus`."""

    source: Source
    _: dataclasses.KW_ONLY
    spec: TokenizerSpec
    validation_fraction: float
    shard_tokens: int
    num_workers: int
    key: str
    progress: "PreparationProgress"

    def make(self, directory: Path) -> None:
        """Write `directory` whole, unless another process does so first."""
        foreign = directory.exists() and not is_prepared(directory)
        if foreign and (not directory.is_dir() or any(directory.iterdir())):
            raise DataError(
                f"{directory} exists and is not a prepared corpus, so nothing is written there.\n"
                "Name a directory that does not exist yet; a prepared corpus that lost its "
                f"{INDEX} may be deleted."
            )
        directory.parent.mkdir(parents=True, exist_ok=True)
        wait = f"Waiting for another process that prepares {directory}"
        with only_one(directory, on_wait=lambda: self.progress.print(wait)) as locked:
            if is_prepared(directory):
                return
            if locked:
                place = resumable_directory(directory, key=self.key, record=RECORD)
            else:  # the file system has no locks: several processes may be at work
                place = atomic_path(directory)
            with place as draft, self.progress:
                draft.mkdir(exist_ok=True)
                self._write(draft)

    def _write(self, directory: Path) -> None:
        """Write the files of the corpus, continuing from the record if there is one."""
        plan, splits = self._resume(directory) or (self._plan(directory), {})
        self.progress.phase("Tokenizing", total=plan.survey.num_bytes)
        with contextlib.ExitStack() as stack:
            writers = [
                stack.enter_context(
                    SplitWriter(
                        directory,
                        split=split,
                        dtype=token_dtype(plan.tokenizer.vocab_size),
                        end_of_text=plan.tokenizer.end_of_text,
                        shard_tokens=self.shard_tokens,
                        record=splits.get(split),
                    )
                )
                for split in _SPLITS
            ]
            self._tokenize(directory, plan, writers)
        num_bytes = sum(writer.num_bytes for writer in writers)
        if num_bytes != plan.survey.num_bytes:
            (directory / RECORD).unlink(missing_ok=True)
            raise DataError(
                f"The text changed while it was read: {plan.survey.num_bytes} bytes at first, "
                f"{num_bytes} later.\nStart again when nothing writes to it."
            )
        index = {
            "version": FORMAT_VERSION,
            "key": self.key,
            "dtype": token_dtype(plan.tokenizer.vocab_size),
            "vocab_size": plan.tokenizer.vocab_size,
            "tokenizer_files": plan.tokenizer_files,
            "splits": {n: w.summary() for n, w in zip(_SPLITS, writers, strict=True)},
        }
        write_whole(directory / INDEX, json.dumps(index, indent=1) + "\n")

    def _plan(self, directory: Path) -> _Plan:
        """Survey the text and build the tokenizer."""
        for path in directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.progress.phase("Reading the text")
        surveyed = survey(
            self.source.documents(),
            validation_fraction=self.validation_fraction,
            sample_bytes=self.spec.sample_bytes,
            on_document=self.progress.advance,
        )
        self.progress.phase("Building the tokenizer")
        tokenizer = self.spec.build(surveyed.sample)
        tokenizer.save(directory / TOKENIZER)
        files = {}
        for path in sorted(directory.iterdir()):
            sync(path)  # before a record or an index refers to it
            files[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return _Plan(dataclasses.replace(surveyed, sample=[]), tokenizer, files)

    def _resume(self, directory: Path) -> tuple[_Plan, dict[str, Any]] | None:
        """Read the record of an earlier attempt; None if there is none of this version."""
        try:
            record: Any = json.loads((directory / RECORD).read_text(encoding="utf-8"))
            if record["version"] != _RECORD_VERSION:
                return None
            tokenizer = load_tokenizer(directory / TOKENIZER)
            plan = _Plan(Survey(**record["survey"]), tokenizer, record["tokenizer_files"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return plan, record["splits"]

    def _record(self, directory: Path, plan: _Plan, writers: Sequence[SplitWriter]) -> None:
        record = {
            "version": _RECORD_VERSION,
            "survey": dataclasses.asdict(plan.survey),
            "tokenizer_files": plan.tokenizer_files,
            "splits": {n: w.record() for n, w in zip(_SPLITS, writers, strict=True)},
        }
        write_whole(directory / RECORD, json.dumps(record))

    def _tokenize(self, directory: Path, plan: _Plan, writers: Sequence[SplitWriter]) -> None:
        """Write the documents that no finished shard holds, with a record after each shard."""
        finished = [writer.num_finished_documents for writer in writers]
        done = sum(writer.num_bytes for writer in writers)
        self.progress.advance(done)

        def documents() -> Iterator[str]:
            for text in self.source.documents():
                split = any(finished) and plan.survey.is_held_out(text.encode())
                if finished[split]:
                    finished[split] -= 1
                else:
                    yield text

        rest = plan.survey.num_bytes - done
        with self._encoder(directory, plan.tokenizer, num_bytes=rest) as encode:
            for data, tokens in encode_all(documents(), encode, num_workers=self.num_workers):
                writer = writers[plan.survey.is_held_out(data)]
                if writer.add(tokens, num_bytes=len(data)):
                    self._record(directory, plan, writers)
                self.progress.advance(len(data))

    @contextlib.contextmanager
    def _encoder(
        self, directory: Path, tokenizer: Tokenizer, *, num_bytes: int
    ) -> Iterator[Encode]:
        if num_bytes < PROCESSES_FROM_BYTES or not isinstance(tokenizer, ByteLevelTokenizer):
            yield tokenizer.encode_batch
            return
        path = directory / TOKENIZER
        with encoding_processes(path, num_processes=self.num_workers) as encode:
            yield encode


class PreparationProgress:
    """Phases of work measured in bytes of text, shown on stderr.

    As a context manager it shows a bar while the block runs. If stderr is not a terminal it prints
    a line when a phase starts and one every ten seconds.
    """

    def __init__(self, *, show: bool) -> None:
        from rich.console import Console  # late: most imports of this module prepare nothing

        self._console = Console(file=sys.stderr, quiet=not show, soft_wrap=True)
        self._has_bar = self._console.is_terminal and show
        self._task: TaskID | None = None
        self._line_due = 0.0

    def __enter__(self) -> "PreparationProgress":
        if self._has_bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._has_bar:
            self._bar.stop()

    def phase(self, name: str, *, total: int | None = None) -> None:
        """Begin a phase; `total` is its number of bytes, if that is known."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total)
        if not self._has_bar:
            self.print(f"{name} ...")
            self._line_due = time.monotonic() + _SECONDS_BETWEEN_LINES

    def advance(self, num_bytes: int) -> None:
        """Report that this many more bytes are done."""
        assert self._task is not None
        self._bar.advance(self._task, num_bytes)
        if not self._has_bar and time.monotonic() > self._line_due:
            (task,) = self._bar.tasks
            total = "" if task.total is None else f" of {task.total / 1e6:.1f}"
            self.print(f"{task.description}: {task.completed / 1e6:.1f}{total} MB")
            self._line_due = time.monotonic() + _SECONDS_BETWEEN_LINES

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, markup=False, highlight=False)

    @functools.cached_property
    def _bar(self) -> "Progress":
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

        return Progress(
            "{task.description}",
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )


@contextlib.contextmanager
def _explaining_disk_errors(directory: Path) -> Iterator[None]:
    """Turn OSError into DataError; sources explain their own, so these come from writing."""
    try:
        yield
    except OSError as error:
        if is_prepared(directory):  # by another process, on a file system without locks
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason, remedy = "the disk is full", "Free some space there"
        else:
            reason, remedy = error.strerror or str(error), "Make it writable"
        raise DataError(
            f"Cannot write the prepared corpus to {directory}: {reason}.\n{remedy}, or choose "
            "another place with cache_dir=..., --out, or the environment variable FIDGPT_CACHE."
        ) from error

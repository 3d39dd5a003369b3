"""Corpora: text and a tokenizer, written as shards of token ids on first use."""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fidgpt.data.documents import Document, text_of
from fidgpt.data.encoders import SplitDocument, encode_all
from fidgpt.data.errors import DataError, delete_command
from fidgpt.data.indexed_directory import FORMAT_VERSION, INDEX, RECORD, IndexedDirectory
from fidgpt.data.prepared import SPLITS, TOKENIZER, PreparedCorpus, SplitWriter
from fidgpt.data.sources import Source
from fidgpt.data.tokenizers import Tokenizer, TokenizerSpec, begin_of_text, load_tokenizer
from fidgpt.files import cache_directory, read_json, sha256_of, sync, write_whole
from fidgpt.ranges import require_size

__all__ = ["Corpus", "CorpusDirectory", "CorpusTokenizer"]


DEFAULT_VALIDATION_FRACTION = 0.02
DEFAULT_SHARD_TOKENS = 128 * 1024 * 1024
_SECONDS_BETWEEN_LINES = 10.0
_HASH_RANGE = 1 << 64


@dataclasses.dataclass(eq=False)
class Corpus:
    """Text and a tokenizer; the training stream and the held-out stream share one corpus.

    It is prepared in a directory named by a hash of the source, the tokenizer and the options, so
    that it is prepared once and never stale.

    Args:
      source: the documents.
      tokenizer: specification of the tokenizer.
      validation_fraction: fraction of the documents to hold out, chosen by a hash of their text.
      cache_dir: where prepared corpora are kept; None for the user's cache.
      shard_tokens: tokens per shard.
      num_workers: number of tokenizer threads; None for one per core. The output does not depend on
        it.

    Raises:
      ValueError: an option is out of range.
    """

    source: Source
    _: dataclasses.KW_ONLY
    tokenizer: TokenizerSpec
    validation_fraction: float = DEFAULT_VALIDATION_FRACTION
    cache_dir: str | Path | None = None
    shard_tokens: int = DEFAULT_SHARD_TOKENS
    num_workers: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.validation_fraction <= 1:
            raise ValueError(f"validation_fraction={self.validation_fraction} must be from 0 to 1.")
        require_size(shard_tokens=self.shard_tokens, num_workers=self.num_workers)
        self._prepared: PreparedCorpus | None = None

    def require_source(self) -> None:
        """Raise DataError if the source is missing; reads no contents."""
        if self._prepared is None:
            self.source.identity()

    def prepare(self, *, show_progress: bool = True) -> PreparedCorpus:
        """Open the prepared corpus, writing it to the cache first if it is missing.

        Later calls return the same object. Raises the errors of `prepare_in`.
        """
        if self._prepared is None:
            root = (
                cache_directory() if self.cache_dir is None else Path(self.cache_dir).expanduser()
            )
            key = self._key()
            self._prepared = self._open(root / "corpora" / key, key, show_progress)
        return self._prepared

    def prepare_in(self, directory: str | Path, *, show_progress: bool = True) -> PreparedCorpus:
        """Open the corpus in `directory`, writing it first if it is missing.

        Memory does not grow with the number of documents. Several processes may call this at once:
        one works, the others wait. If it is interrupted or killed, the finished shards are kept
        beside `directory`, and the same call resumes after them.

        Raises:
          DataError: the text or the tokenizer is invalid, or the directory cannot be written, is
            damaged or holds something else.
        """
        return self._open(Path(directory).expanduser(), self._key(), show_progress)

    def _key(self) -> str:
        """Return a hash of everything that determines the prepared corpus."""
        parts = [FORMAT_VERSION, self.source.identity(), self.tokenizer.identity()]
        parts += [self.validation_fraction, self.shard_tokens]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def _open(self, directory: Path, key: str, show_progress: bool) -> PreparedCorpus:
        files = IndexedDirectory(directory)
        foreign = directory.exists() and not files.exists
        if foreign and (not directory.is_dir() or any(directory.iterdir())):
            raise DataError(
                f"{directory} exists and is not a prepared corpus, so it is not overwritten.\n"
                "Choose a directory that does not exist yet, or delete this one if it is a "
                f"prepared corpus that lost its {INDEX}."
            )
        progress = PreparationProgress(show=show_progress)
        files.write_once(
            lambda draft: {"key": key, **_Preparation(self, draft, progress).write()},
            key=key,
            on_wait=lambda: progress.print(f"Waiting for another process to write {directory}"),
        )
        prepared = PreparedCorpus(directory)
        if prepared.key != key:
            raise DataError(
                f"{directory} holds a corpus that was prepared from another source, tokenizer or "
                f"split.\nChoose another directory, or delete this one: {delete_command(directory)}"
            )
        return prepared


class CorpusDirectory:
    """A corpus prepared earlier, perhaps on another machine; its source is not needed."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._prepared: PreparedCorpus | None = None

    def prepare(self, *, show_progress: bool = True) -> PreparedCorpus:
        """Open the directory; raise DataError if it is damaged."""
        if self._prepared is None:
            self._prepared = PreparedCorpus(Path(self.path).expanduser())
        return self._prepared


class CorpusTokenizer:
    """The tokenizer of a corpus."""

    sample_bytes = 0

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def identity(self) -> str:
        """Return the key of the corpus, after preparing it."""
        return f"of corpus {self.corpus.prepare().key}"

    def end_of_text_id(self) -> int:
        """Return the end-of-text id of the corpus's tokenizer, after preparing the corpus."""
        return self.corpus.tokenizer.end_of_text_id()

    def begin_of_text_id(self) -> int | None:
        """Return the id of the token in front of documents, as of the end of text."""
        return begin_of_text(self.corpus.tokenizer)

    def build(self, sample: Sequence[str]) -> Tokenizer:
        """Prepare the corpus and return its tokenizer."""
        return self.corpus.prepare().tokenizer


class _Preparation:
    """Writes a corpus to a directory, resuming from the record of an earlier attempt."""

    def __init__(self, corpus: Corpus, directory: Path, progress: "PreparationProgress") -> None:
        self._corpus = corpus
        self._directory = directory
        self._progress = progress
        self._num_workers = corpus.num_workers or len(os.sched_getaffinity(0))

    def write(self) -> dict[str, Any]:
        """Write all files except the index, and return the index."""
        surveyed, records = self._resume() or (self._begin(), {})
        tokenizer = load_tokenizer(self._directory / TOKENIZER)
        dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
        writers = [
            SplitWriter(
                self._directory,
                split=split,
                dtype=dtype,
                end_of_text=tokenizer.end_of_text,
                shard_tokens=self._corpus.shard_tokens,
                record=records.get(split),
            )
            for split in SPLITS
        ]
        with contextlib.ExitStack() as stack:
            for writer in writers:
                stack.callback(writer.close)
            self._tokenize(surveyed, tokenizer, writers)
            for writer in writers:
                writer.finish_shard()
        num_bytes = sum(writer.num_bytes for writer in writers)
        if num_bytes != surveyed.num_bytes:
            (self._directory / RECORD).unlink(missing_ok=True)
            raise DataError(
                f"The text changed while it was read: it had {surveyed.num_bytes} bytes at first, "
                f"and {num_bytes} later.\nStart again when nothing writes to it."
            )
        files = sorted(self._directory.glob("tokenizer*.json"))
        return {
            "dtype": dtype,
            "vocab_size": tokenizer.vocab_size,
            "tokenizer_files": {path.name: sha256_of(path) for path in files},
            "splits": {n: w.summary() for n, w in zip(SPLITS, writers, strict=True)},
        }

    def _begin(self) -> "Survey":
        """Survey the text and write the tokenizer."""
        for path in self._directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._progress.phase("Reading the text")
        surveyed = survey(
            self._corpus.source.documents(),
            validation_fraction=self._corpus.validation_fraction,
            sample_bytes=self._corpus.tokenizer.sample_bytes,
            on_document=self._progress.advance,
        )
        self._progress.phase("Building the tokenizer")
        tokenizer = self._corpus.tokenizer.build(surveyed.sample)
        tokenizer.save(self._directory / TOKENIZER)
        for path in self._directory.iterdir():
            sync(path)  # before a record or an index refers to it
        return dataclasses.replace(surveyed, sample=[])

    def _resume(self) -> "tuple[Survey, dict[str, Any]] | None":
        """Return the record of an earlier attempt; None if it or its tokenizer is unreadable."""
        try:
            load_tokenizer(self._directory / TOKENIZER)
            record: Any = read_json(self._directory / RECORD)
            return Survey(**record["survey"]), record["splits"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _tokenize(
        self, surveyed: "Survey", tokenizer: Tokenizer, writers: Sequence[SplitWriter]
    ) -> None:
        """Write the documents not in finished shards, with a record after each shard."""
        finished = [writer.num_finished_documents for writer in writers]
        done = sum(writer.num_bytes for writer in writers)
        self._progress.phase("Tokenizing", total=surveyed.num_bytes, done=done)

        def documents() -> Iterator[SplitDocument]:
            for document in self._corpus.source.documents():
                data = text_of(document).encode()
                split = int(_hash(data) < surveyed.held_out_below)
                if finished[split]:
                    finished[split] -= 1
                else:
                    yield SplitDocument(document, len(data), split)

        for item, encoded in encode_all(documents(), tokenizer, num_workers=self._num_workers):
            writer = writers[item.split]
            if writer.add(encoded, num_bytes=item.num_bytes):
                records = {n: w.record() for n, w in zip(SPLITS, writers, strict=True)}
                record = {"survey": dataclasses.asdict(surveyed), "splits": records}
                write_whole(self._directory / RECORD, json.dumps(record))
            self._progress.advance(item.num_bytes)


@dataclasses.dataclass(frozen=True)
class Survey:
    """The results of reading a corpus once.

    Attributes:
      num_bytes: number of bytes of text.
      held_out_below: a document is held out if its hash is below this.
      sample: the training documents on which the tokenizer is trained.
    """

    num_bytes: int
    held_out_below: int
    sample: list[str]


def survey(
    documents: Iterable[Document],
    *,
    validation_fraction: float,
    sample_bytes: int,
    on_document: Callable[[int], None],
) -> Survey:
    """Read every document once, to size the corpus, split it and sample it.

    The sample consists of the documents with the largest hashes, up to `sample_bytes` bytes, so it
    does not depend on their order. If there are two different documents, at least one is held out
    and at least one is not, unless `validation_fraction` is 0 or 1.
    """
    num_bytes = sampled_bytes = 0
    smallest, largest = _HASH_RANGE, -1
    lowest = 0 if sample_bytes else _HASH_RANGE
    sample: list[tuple[int, int, str]] = []
    for document in documents:
        text = text_of(document)
        data = text.encode()
        value, size = _hash(data), len(data)
        on_document(size)
        num_bytes += size
        smallest, largest = min(smallest, value), max(largest, value)
        if value >= lowest:
            sample.append((value, size, text))
            sampled_bytes += size
        while sampled_bytes > sample_bytes and len(sample) > 1:
            lowest += (_HASH_RANGE - lowest) // 8
            sample = [item for item in sample if item[0] >= lowest]
            sampled_bytes = sum(size for _, size, _ in sample)
    if largest < 0:
        raise DataError("The corpus holds no text.\nCheck the path of the source.")
    below = int(validation_fraction * _HASH_RANGE)
    if 0 < below < _HASH_RANGE:
        below = min(max(below, smallest + 1), largest) if smallest < largest else 0
    # If everything is held out, the tokenizer is trained on that.
    least = 0 if below == _HASH_RANGE else below
    chosen = [text for value, _, text in sorted(sample) if value >= least]
    return Survey(num_bytes, below, chosen)


def _hash(data: bytes) -> int:
    """Return a 64-bit hash of a document's bytes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


class PreparationProgress:
    """Prints progress in bytes of text to stderr, a line every ten seconds."""

    def __init__(self, *, show: bool) -> None:
        self._show = show

    def phase(self, name: str, *, total: int = 0, done: int = 0) -> None:
        """Begin a phase; `total` is its number of bytes, 0 if unknown."""
        self.print(f"{name} ...")
        self._name, self._total, self._done, self._first = name, total, done, done
        self._began = self._printed = time.monotonic()

    def advance(self, num_bytes: int) -> None:
        """Add to the bytes done, and print a line when one is due."""
        self._done += num_bytes
        now = time.monotonic()
        if now < self._printed + _SECONDS_BETWEEN_LINES:
            return
        self._printed = now
        line = f"{self._name}: {self._done / 1e6:.1f} MB"
        if self._total:
            pace = (now - self._began) / max(1, self._done - self._first)
            left = datetime.timedelta(seconds=round(pace * (self._total - self._done)))
            line += f" of {self._total / 1e6:.1f} MB, {left} left"
        self.print(line)

    def print(self, line: str) -> None:
        """Print a line unless progress is hidden."""
        if self._show:
            print(line, file=sys.stderr, flush=True)

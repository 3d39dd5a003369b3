"""Writing a corpus: survey, tokenizer, shards, index; what is finished outlives a kill."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fidgpt import drafts
from fidgpt.data.errors import DataError, removal
from fidgpt.data.preparing.encoders import Encode, encoded, encoding_processes
from fidgpt.data.preparing.prepared import FORMAT_VERSION, INDEX, TOKENIZER
from fidgpt.data.preparing.progress import PreparationProgress
from fidgpt.data.preparing.shards import SplitWriter, token_dtype
from fidgpt.data.preparing.survey import Survey, survey
from fidgpt.data.sources.sources import Source
from fidgpt.data.tokenizers.byte_level import ByteLevelTokenizer
from fidgpt.data.tokenizers.tokenizer import Tokenizer, TokenizerSpec
from fidgpt.data.tokenizers.tokenizer_files import load_tokenizer
from fidgpt.drafts import sync, write_whole

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

"""Where prepared corpora lie when nobody says where."""

from collections.abc import Sequence
from pathlib import Path

from fidgpt import files
from fidgpt.data.errors import DataError
from fidgpt.data.preparation import (
    DEFAULT_SHARD_TOKENS,
    DEFAULT_VALIDATION_FRACTION,
    check_options,
    preparation_key,
    prepare_corpus,
)
from fidgpt.data.prepared import PreparedCorpus
from fidgpt.data.sources import Source
from fidgpt.data.tokenizers import Tokenizer, TokenizerSpec


def cache_directory() -> Path:
    """`$FIDGPT_CACHE`, else `$XDG_CACHE_HOME/fidgpt`, else `~/.cache/fidgpt`."""
    try:
        return files.cache_directory()
    except ValueError as error:
        raise DataError(f"{error} Or pass cache_dir=... to the corpus.") from error


class Corpus:
    """Text and a tokenizer; the training stream and the held-out stream share one.

    `prepare` writes the tokens under `cache_dir` (by default `cache_directory()`), in a directory
    named by a hash of the source, the tokenizer and the options, so that nothing is prepared
    twice and nothing stale is read. `PreparedCorpus` says what it holds.
    """

    def __init__(
        self,
        source: Source,
        *,
        tokenizer: TokenizerSpec,
        validation_fraction: float = DEFAULT_VALIDATION_FRACTION,
        cache_dir: str | Path | None = None,
        shard_tokens: int = DEFAULT_SHARD_TOKENS,
        num_workers: int | None = None,
    ) -> None:
        self.check_arguments(
            validation_fraction=validation_fraction,
            shard_tokens=shard_tokens,
            num_workers=num_workers,
        )
        self.source = source
        self.tokenizer = tokenizer
        self.validation_fraction = validation_fraction
        self.cache_dir = cache_dir
        self.shard_tokens = shard_tokens
        self.num_workers = num_workers
        self._prepared: PreparedCorpus | None = None

    @staticmethod
    def check_arguments(
        *, validation_fraction: float, shard_tokens: int, num_workers: int | None
    ) -> None:
        """Raises DataError as `prepare_corpus` does."""
        check_options(
            validation_fraction=validation_fraction,
            shard_tokens=shard_tokens,
            num_workers=num_workers,
        )

    def require_source(self) -> None:
        """Raises DataError where the source is not there; reads no contents."""
        if self._prepared is None:
            self.source.identity()

    def prepare(self, *, show_progress: bool = True) -> PreparedCorpus:
        """Open the prepared corpus, writing it first if it is missing; again, it costs nothing.

        Raises DataError: see `prepare_corpus`.
        """
        if self._prepared is None:
            key = preparation_key(
                self.source,
                tokenizer=self.tokenizer,
                validation_fraction=self.validation_fraction,
                shard_tokens=self.shard_tokens,
            )
            root = cache_directory() if self.cache_dir is None else Path(self.cache_dir)
            self._prepared = prepare_corpus(
                self.source,
                tokenizer=self.tokenizer,
                directory=root / "corpora" / key,
                key=key,
                validation_fraction=self.validation_fraction,
                shard_tokens=self.shard_tokens,
                num_workers=self.num_workers,
                show_progress=show_progress,
            )
        return self._prepared


class CorpusDirectory:
    """A corpus that was prepared before, perhaps on another machine; its source is not needed."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._prepared: PreparedCorpus | None = None

    def prepare(self, *, show_progress: bool = True) -> PreparedCorpus:
        """Open the directory; again, it costs nothing. Raises DataError if it is damaged."""
        if self._prepared is None:
            self._prepared = PreparedCorpus(Path(self.path).expanduser())
        return self._prepared


class CorpusTokenizer:
    """The tokenizer that a corpus has, or will have once it is prepared."""

    sample_bytes = 0

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def identity(self) -> str:
        """That of the prepared corpus, which is prepared first."""
        return f"of corpus {self.corpus.prepare().key}"

    def end_of_text_id(self) -> int:
        """As the corpus's own tokenizer says."""
        return self.corpus.tokenizer.end_of_text_id()

    def build(self, sample: Sequence[str]) -> Tokenizer:
        """Prepare the corpus, and take its tokenizer."""
        return self.corpus.prepare().tokenizer

"""Corpora: text with a tokenizer, prepared when they are first used."""

from collections.abc import Sequence
from pathlib import Path

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
from fidgpt.files import cache_directory

__all__ = ["Corpus", "CorpusDirectory", "CorpusTokenizer"]


class Corpus:
    """Text and a tokenizer; the training stream and the held-out stream share one corpus.

    It is prepared in a directory named by a hash of the source, the tokenizer and the options, so
    that nothing is prepared twice and nothing stale is read.

    Args:
      source: the documents.
      tokenizer: how to make the tokenizer.
      validation_fraction: share of the documents that is held out.
      cache_dir: where prepared corpora are kept; None means the user's cache.
      shard_tokens: tokens of a shard.
      num_workers: processes that tokenize; None means one for each core.

    Raises:
      DataError: an option is out of range.
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
        check_options(
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

    def require_source(self) -> None:
        """Raise DataError if the source is missing; reads no contents."""
        if self._prepared is None:
            self.source.identity()

    def prepare(self, *, show_progress: bool = True) -> PreparedCorpus:
        """Open the prepared corpus, writing it first if it is missing; raises as `prepare_corpus`.

        Later calls return the same object.
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
    """A corpus that was prepared before, perhaps on another machine, without its source."""

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
        """Return that of the corpus's tokenizer."""
        return self.corpus.tokenizer.end_of_text_id()

    def build(self, sample: Sequence[str]) -> Tokenizer:
        """Prepare the corpus and return its tokenizer."""
        return self.corpus.prepare().tokenizer

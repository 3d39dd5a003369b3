"""A small corpus of real text for the data tests, and a source that is a list."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fidgpt import data


class Documents:
    """A source that is a list, counts how often it is read, and never touches the disk."""

    def __init__(self, texts: Sequence[str], *, name: str = "list") -> None:
        self.texts = list(texts)
        self.name = name
        self.num_readings = 0

    def documents(self) -> Iterator[str]:
        self.num_readings += 1
        yield from self.texts

    def identity(self) -> str:
        return f"{self.name} {len(self.texts)}"


@pytest.fixture(scope="session")
def modules() -> list[str]:
    """60 modules of the standard library, each cut to 3,000 characters."""
    texts = (text[:3000] for text in data.StandardLibrary().documents() if len(text) > 2000)
    return [next(texts) for _ in range(60)]


@pytest.fixture
def documents() -> type[Documents]:
    """The class of a source that is a list."""
    return Documents


@pytest.fixture
def prepare(tmp_path: Path) -> Callable[..., data.PreparedCorpus]:
    """`prepare(texts_or_source, name, ...)`: prepare it, as bytes, in a directory of that name."""

    def prepare(source: Any, name: str | Path = "out", **options: Any) -> data.PreparedCorpus:
        source = Documents(source) if isinstance(source, list) else source
        settings: dict[str, Any] = {"tokenizer": data.ByteTokenizer()} | options
        corpus = data.Corpus(source, **settings)
        return corpus.prepare_in(tmp_path / name, show_progress=False)

    return prepare


@pytest.fixture
def prepared(
    prepare: Callable[..., data.PreparedCorpus], modules: list[str]
) -> data.PreparedCorpus:
    """The modules in a few shards of BPE tokens, a fifth of them held out."""
    options: dict[str, Any] = {"validation_fraction": 0.2, "shard_tokens": 20_000}
    return prepare(modules, "corpus", tokenizer=data.BPETokenizer(vocab_size=300), **options)


@pytest.fixture
def stream_of(tmp_path: Path) -> Callable[..., data.TokenStream]:
    """`stream_of(texts, ...)`: a prepared stream of some texts, none of them held out."""

    def make(
        texts: Sequence[str], *, tokenizer: Any = None, prepare: bool = True, **options: Any
    ) -> data.TokenStream:
        corpus = data.Corpus(
            Documents(texts, name=str(hash(tuple(texts)))),
            tokenizer=tokenizer or data.ByteTokenizer(),
            validation_fraction=0.0,
            cache_dir=tmp_path / "cache",
        )
        sizes: dict[str, Any] = {"seq_len": 32, "batch_size": 8, "seed": 1}
        stream = data.TokenStream(corpus, **sizes | options)
        if prepare:
            stream.prepare(show_progress=False)
        return stream

    return make

"""A small corpus of real text for the data tests, and a source that is a list."""

from collections.abc import Iterator, Sequence

import pytest

from fidgpt.data import StandardLibrary


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
    texts: list[str] = []
    for text in StandardLibrary().documents():
        if len(text) > 2000:
            texts.append(text[:3000])
        if len(texts) == 60:
            break
    return texts


@pytest.fixture
def documents() -> type[Documents]:
    """The class of a source that is a list."""
    return Documents

"""What other people's packages have and torchtune's files name: partials, and defaults of None."""

import pathlib
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, build, check_and_bind
from fidgpt.interop import read_targets, write_targets

NAME = "package_with_partials"
SOURCE = """
import functools

def dataset(source: str, *, split: str = "train", column: str = None, packed: bool = False):
    return (source, split, column, packed)

cleaned = functools.partial(dataset, source="yahma/alpaca-cleaned")
half = functools.partial(cleaned, split="train[:50%]")
"""


@pytest.fixture(autouse=True)
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))


def read(text: str) -> Any:
    return read_targets(f"{{_component_: {NAME}.{text}}}", allowed=(NAME,))


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("cleaned", ("yahma/alpaca-cleaned", "train", None, False)),
        ("cleaned, packed: true", ("yahma/alpaca-cleaned", "train", None, True)),
        ("cleaned, source: mine", ("mine", "train", None, False)),
        ("half", ("yahma/alpaca-cleaned", "train[:50%]", None, False)),
    ],
)
def test_a_partial_stands_for_what_it_calls(text: str, made: tuple[Any, ...]) -> None:
    part = read(text)
    assert fdl.get_callable(part).__name__ == "dataset"
    assert build(check_and_bind(part)) == made
    assert build(read_targets(write_targets(part), allowed=(NAME,))) == made


def test_null_fits_where_it_is_the_default() -> None:
    assert build(check_and_bind(read("cleaned, column: null")))[2] is None


def test_null_that_does_not_fit_is_refused_with_the_default() -> None:
    with pytest.raises(ConfigError, match="str is asked, not None .* Leave the line out for 'tra"):
        read("cleaned, split: null")
    with pytest.raises(ConfigError) as error:
        read("dataset, source: null")
    assert "Leave" not in str(error.value)


def test_an_argument_that_is_said_twice_is_refused_as_ever() -> None:
    with pytest.raises(ConfigError, match="said twice"):
        read("dataset, _args_: [a], source: b")

"""What is read without a parser is what the parser would have read."""

from typing import Any

import pytest

from fidgpt.graph import ConfigError, read_value
from fidgpt.graph.values import NOT_USUAL, read_usual


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("12", int, 12),
        (" -7 ", int, -7),
        ("-0", int, 0),
        ("12", float, 12.0),
        ("-0", float, 0.0),
        ("-0.0", float, -0.0),
        ("3e-4", float, 3e-4),
        ("1.5e10", float, 1.5e10),
        ("true", bool, True),
        ("False", bool, False),
        (" a word ", str, " a word "),
        ("corpus.txt", str, "corpus.txt"),
    ],
)
def test_what_is_usual_is_read(text: str, hint: Any, value: Any) -> None:
    for read in (read_usual, read_value):
        found = read(text, hint)
        assert (type(found), repr(found)) == (hint, repr(value))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("007", int),
        ("1_024", int),
        ("1e3", int),
        ("12.0", int),
        ("true", int),
        ("\u0663", int),
        ("9" * 5000, int),
        ("1e999", float),
        ("nan", float),
        ("1.", float),
        ("1", bool),
        ("TRUE", bool),
        ("'quoted'", str),
        ("12", int | str),
        ("12", Any),
    ],
)
def test_what_is_not_is_left_to_the_parser(text: str, hint: Any) -> None:
    assert read_usual(text, hint) is NOT_USUAL


@pytest.mark.parametrize("text", ["1e999", "nan", "0x"])
def test_what_no_float_is_stays_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_value(text, float)


@pytest.mark.parametrize("text", ["e.txt", "Type.name", "NoneType.x"])
def test_a_dot_in_a_text_is_no_member_of_an_enum(text: str) -> None:
    assert read_value(text, str | int) == text

"""Values read from text by the annotation of a parameter."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
import torch

from fidgpt.graph import read_value

from .edited import message_of
from .parts import Color, Square

READ = [
    ("-1", int, -1),
    ("1e3", int, 1000),
    ("2**10", int, 1024),
    ("2*(3+4)", int, 14),
    (".5", float, 0.5),
    ("a–b", str | int, "a–b"),
    ("3.0", int | float, 3.0),
    ("FALSE", bool, False),
    ("none", str | None, None),
    ("'None'", str | None, "None"),
    ("a, b", str, "a, b"),
    ("a#b", str | None, "a#b"),
    ("[don't, 'a, b', c # d]", list[str], ["don't", "a, b", "c # d"]),
    ("", str, ""),
    ("'a\nb'", str, "a\nb"),
    ("1,2", tuple[int, int], (1, 2)),
    ("a,b", list[str], ["a", "b"]),
    ("[1, [2]]", list[Any], [1, [2]]),
    ("{'a': 1}", dict[str, float], {"a": 1.0}),
    ("BLUE", Color | None, Color.BLUE),
    ("RED,'BLUE'", list[Color] | None, [Color.RED, Color.BLUE]),
    ("{a: RED, 'b, c': BLUE}", dict[str, Color], {"a": Color.RED, "b, c": Color.BLUE}),
    ("{RED: 1}", dict[Color, float], {Color.RED: 1.0}),
    ("[bfloat16, torch.half]", Sequence[torch.dtype], [torch.bfloat16, torch.half]),
    ("[a/b.txt, 'c d']", list[pathlib.Path], [pathlib.Path("a/b.txt"), pathlib.Path("c d")]),
    ("'a b'", pathlib.Path, pathlib.Path("a b")),
    ("a.b", Any, "a.b"),
    ("os.system('ls')", Any, "os.system('ls')"),
    ("torch.float32", torch.dtype, torch.float32),
    ("cuda:1", torch.device | None, torch.device("cuda", 1)),
]

REFUSED = [
    ("1.5", int),
    ("", int),
    ("1/0", float),
    ("1e23", int),  # as a float it is another number
    ("nan", float),
    ("9" * 5000, int),
    ("9**9**9", int),
    ("a", Sequence[str]),
    ("(1, 2, 3)", tuple[int, int]),
    ("Square", Square | None),
    ("RED", list[Color]),
    ("[RED, GREEN]", list[Color]),
    ("[Square(2)]", list[Any]),
    ("", pathlib.Path),
    ("__import__('os').system('ls')", int),
    ("[" * 10_000, int),
    ("lambda: 0", Callable[..., Any]),
]


@pytest.mark.parametrize(("text", "hint", "expected"), READ)
def test_read(text: str, hint: Any, expected: Any) -> None:
    value = read_value(text, hint)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(("text", "hint"), REFUSED, ids=[text[:12] for text, _ in REFUSED])
def test_refused(text: str, hint: Any) -> None:
    assert len(message_of(lambda: read_value(text, hint))) < 200


@pytest.mark.parametrize(
    ("text", "hint", "message"),
    [
        ("[a, None]", list[str], "None is not a str: for the word, write it in quotes: 'None'."),
        ("c", Literal["red", "blue"], "'c' is not Literal['red', 'blue']. There are blue, red."),
        ("blue", Color, "'blue' is not a Color. Did you mean BLUE?"),
        (
            "bfloat6",
            torch.dtype,
            "'bfloat6' is not a dtype. Did you mean bfloat16 or float64 or float16?",
        ),
        (" ", Sequence[str], "nothing follows the '='; it takes Sequence[str]."),
        ("['a', 'b'", Sequence[str], "\"['a', 'b'\" has an unclosed bracket."),
    ],
)
def test_messages(text: str, hint: Any, message: str) -> None:
    assert message_of(lambda: read_value(text, hint)) == message

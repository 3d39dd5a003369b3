"""Values read from text by the annotation of a parameter."""

import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NotRequired, TypedDict

import pytest
import torch

from fidgpt.graph import read_value

from .edited import message_of
from .parts import Color, Square


class Sizes(TypedDict):
    """A dict whose keys are known."""

    x: int
    y: NotRequired[str]


READ = [
    ("-1", int, -1),
    ("1e3", int, 1000),
    ("2**10", int, 1024),
    ("2*(3+4)", int, 14),
    ("-2**2", int, -4),
    ("inf", float, math.inf),
    (".5", float, 0.5),
    ("a–b", str | int, "a–b"),
    ("'−' ", str | int, "−"),
    ("3.0", int | float, 3.0),
    ("FALSE", bool, False),
    ("none", str | None, None),
    ("'None'", str | None, "None"),
    ("a, b", str, "a, b"),
    ("def ", str, "def "),
    ("a#b", str | None, "a#b"),
    ("5#0", int | str, "5#0"),
    ("[don't, 'a, b', c # d]", list[str], ["don't", "a, b", "c # d"]),
    ("[a], [b]", list[list[str]], [["a"], ["b"]]),
    ("", str, ""),
    ("1e-400", int | str, "1e-400"),
    ("'a\nb'", str, "a\nb"),
    (r"C:\data", str, r"C:\data"),
    ("1,2", tuple[int, int], (1, 2)),
    ("(1,)", list[int], [1]),
    ("a,b", list[str], ["a", "b"]),
    ("['def ', 'class ']", Sequence[str], ["def ", "class "]),
    ("[1, [2]]", list[Any], [1, [2]]),
    ("{'a': 1}", dict[str, float], {"a": 1.0}),
    ("BLUE", Color | None, Color.BLUE),
    ("data/text.txt", str | pathlib.Path, "data/text.txt"),
    ("RED,'BLUE'", list[Color] | None, [Color.RED, Color.BLUE]),
    ("(RED, 1e2)", tuple[Color, int], (Color.RED, 100)),
    ("{a: RED, 'b, c': Color.BLUE}", dict[str, Color], {"a": Color.RED, "b, c": Color.BLUE}),
    ("{RED: 1}", dict[Color, float], {Color.RED: 1.0}),
    ("{1e3: 1, 2**4: 1/2}", dict[int, float], {1000: 1.0, 16: 0.5}),
    ("[bfloat16, torch.half]", Sequence[torch.dtype], [torch.bfloat16, torch.half]),
    ("[a/b.txt, 'c d']", list[pathlib.Path], [pathlib.Path("a/b.txt"), pathlib.Path("c d")]),
    ("{x: 1e1, y: z}", Sizes, {"x": 10, "y": "z"}),
    ("'a b'", pathlib.Path, pathlib.Path("a b")),
    ("a.b", Any, "a.b"),
    ("{[1]: 2}", Any, "{[1]: 2}"),
    ("os.system('ls')", Any, "os.system('ls')"),
    ("torch.float32", torch.dtype, torch.float32),
    ("half", torch.dtype | None, torch.half),
    ("cuda:1", torch.device | None, torch.device("cuda", 1)),
    ("Color.BLUE", Color, Color.BLUE),
    (f"{Color.__module__}.Color.BLUE", Color, Color.BLUE),
]

REFUSED = [
    ("1.5", int),
    ("", int),
    ("٣", int),
    ("7 % 2", int),
    ("'a' * 9", int),
    ("1/0", float),
    ("1e23", int),  # as a float it is another number
    ("nan", float),
    ("9" * 5000, int),
    ("9**9**9", int),
    ("(2**64)**64", int),
    ("2**-99999", float),
    ("(-8)**0.5", float),
    ("٣k", int),
    ("a", Sequence[str]),
    ("(1, 2, 3)", tuple[int, int]),
    ("Square", Square | None),
    ("RED", list[Color]),
    ("[RED, GREEN]", list[Color]),
    ("{1: x}", dict[int, float]),
    ("{y: a}", Sizes),
    ("{x: 1, z: 2}", Sizes),
    ("[Square(2)]", list[Any]),
    ("", pathlib.Path),
    ("__import__('os').system('ls')", int),
    ("\0", int),
    ("[" * 10_000, int),
    ("1+" * 10_000 + "1", int),
    ("lambda: 0", Callable[..., Any]),
    ("olor.BLUE", Color),
    ("gpu", torch.device),
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
        ("5#0", int, "'5#0' is not an int."),
        ("[a, None]", list[str], "None is not a str: for the word, write it in quotes: 'None'."),
        (
            "[a, b] # [c]",
            list[str],
            "'a, b] # [c' closes a bracket that is not open: quote the text.",
        ),
        ("c", Literal["red", "blue"], "'c' is not Literal['red', 'blue']. There are blue, red."),
        ("blue", Color, "'blue' is not a Color. Did you mean BLUE?"),
        (
            "bfloat6",
            torch.dtype,
            "'bfloat6' is not a dtype. Did you mean bfloat16 or float64 or float16?",
        ),
        ("rad", Color, "'rad' is not a Color. There are BLUE, RED."),
        ("a", Sequence[str], "'a' is not Sequence[str]. Write ['a']."),
        ("", int, "nothing follows the '='; it takes an int."),
        (" ", Sequence[str], "nothing follows the '='; it takes Sequence[str]."),
        ("['a', 'b'", Sequence[str], "\"['a', 'b'\" has an unclosed bracket."),
        ("(1, [2, 3)", tuple[int, int], "'(1, [2, 3)' has an unclosed bracket."),
        ("don't (", int, '"don\'t (" is not an int.'),
        ("1e400", float, "'1e400' is too large a number."),
        ("1e-400", float, "'1e-400' is too small a number: as a float it would be 0.0."),
        ("[1e-400]", list[float], "'[1e-400]' is too small a number: as a float it would be 0.0."),
        ("10k", int, "'10k' is not an int."),
        ("0,001", float, "'0,001' is not a float."),
        (
            "Square",
            Square | None,
            "'Square' is not Square or None. It takes a component, which cannot be typed: "
            "use a fiddler to set it.",
        ),
    ],
)
def test_messages(text: str, hint: Any, message: str) -> None:
    assert message_of(lambda: read_value(text, hint)) == message


@pytest.mark.parametrize("text", ["0", "0.0", "-0.0", "0e5", "0e-400", "0_0.0", "0*1e-9", "1-1.0"])
def test_a_zero_that_is_written_as_one_is_read(text: str) -> None:
    assert read_value(text, float) == 0

"""Reading a call as typed: names, arguments by annotation, commas, quotes."""

from typing import Any, Literal

import pytest

from fidgpt.compose.catalogue import call_with
from fidgpt.graph import ConfigError
from fidgpt.graph.expressions import Call, parse_call, split_at_commas


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("use", Call("use", [], {})),
        ("use()", Call("use", [], {})),
        ("use(1, 2)", Call("use", ["1", "2"], {})),
        ("use(a=1, b = x y )", Call("use", [], {"a": "1", "b": "x y"})),
        ("use(1, b=(2, 3))", Call("use", ["1"], {"b": "(2, 3)"})),
        ("use(b='x, y')", Call("use", [], {"b": "'x, y'"})),
        ("use(it's, a)", Call("use", ["it's", "a"], {})),
        ("use(a(b)c)", Call("use", ["a(b)c"], {})),
        ("use(a='=')", Call("use", [], {"a": "'='"})),
        ("use({'k': [1, 2]}, 3)", Call("use", ["{'k': [1, 2]}", "3"], {})),
    ],
)
def test_calls(text: str, call: Call) -> None:
    assert parse_call(text) == call


@pytest.mark.parametrize(
    "text", ["use(", "use(1", "use(1)x", "use(a=1, 2)", "use(1,,2)", "use(,1)", "use(a=1, a=2)"]
)
def test_what_is_no_call(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_call(text)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("a", ["a"]),
        ("(1,2),(3,4)", ["(1,2)", "(3,4)"]),
        ("f(a,b),g", ["f(a,b)", "g"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("it's,that's", ["it's,that's"]),
    ],
)
def test_pieces_between_commas(text: str, pieces: list[str]) -> None:
    assert split_at_commas(text) == pieces


def typed(
    root: str,
    count: int,
    ratio: float = 0.5,
    *,
    path: str = "",
    kind: Literal["a", "b"] = "a",
    plain=None,
    betas: tuple[float, float] = (0.0, 0.0),
) -> list[Any]:
    """Takes what it is given first, and then arguments of many types."""
    return [root, count, ratio, path, kind, plain, betas]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("typed(1e3)", ["root", 1000, 0.5, "", "a", None, (0.0, 0.0)]),
        ("typed(1, 1)", ["root", 1, 1.0, "", "a", None, (0.0, 0.0)]),
        (
            "typed(count=1, path=/data/a b.txt, kind=b)",
            ["root", 1, 0.5, "/data/a b.txt", "b", None, (0.0, 0.0)],
        ),
        ("typed(1, path='3', plain=3)", ["root", 1, 0.5, "3", "a", 3, (0.0, 0.0)]),
        ("typed(1, betas=(0.9, 1))", ["root", 1, 0.5, "", "a", None, (0.9, 1.0)]),
        ("typed(1, 2, x)", ["root", 1, 2.0, "x", "a", None, (0.0, 0.0)]),
    ],
)
def test_arguments_are_read_by_annotation(text: str, expected: list[Any]) -> None:
    assert call_with(typed, parse_call(text), "root") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "typed(1, count=1)",
            "typed(count, ratio, path, kind, plain, betas): multiple values for ",
        ),
        ("typed(1, root=1)", "typed has no argument 'root'."),
        ("typed(1, kind=c)", "kind: 'c' is not Literal['a', 'b']. There are a, b."),
        (
            "typed(1,2,3,a,5,(1,2),7)",
            "typed(count, ratio, path, kind, plain, betas): too many ",
        ),
    ],
)
def test_wrong_arguments(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call_with(typed, parse_call(text), "root")
    assert str(caught.value).startswith(message)


def test_its_own_mistakes_are_passed_on() -> None:
    def refuses(root: Any) -> None:
        raise ConfigError("not this one")

    with pytest.raises(ConfigError, match="^not this one$"):
        call_with(refuses, parse_call("refuses"), object())


def test_a_function_may_exit() -> None:
    def leaves(cfg: str) -> None:
        raise SystemExit(0)

    with pytest.raises(ConfigError, match="leaves failed"):
        call_with(leaves, parse_call("leaves"), "cfg")

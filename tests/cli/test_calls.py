"""Reading a call as typed: names, arguments by annotation, commas, quotes."""

from typing import Any, Literal

import pytest

from fidgpt.compose.catalogue import call_with
from fidgpt.graph import ConfigError
from fidgpt.graph.expressions import Call, parse_call, split_at_commas


@pytest.mark.parametrize(
    ("text", "positional", "named"),
    [
        ("use", [], {}),
        ("use()", [], {}),
        ("use(1, b=(2, 3))", ["1"], {"b": "(2, 3)"}),
        ("use(a=1, b = x y )", [], {"a": "1", "b": "x y"}),
        ("use(it's, a(b)c)", ["it's", "a(b)c"], {}),
        ("use(a='=', b='x, y')", [], {"a": "'='", "b": "'x, y'"}),
        ("use({'k': [1, 2]}, 3)", ["{'k': [1, 2]}", "3"], {}),
    ],
)
def test_calls(text: str, positional: list[str], named: dict[str, str]) -> None:
    assert parse_call(text) == Call("use", positional, named)


@pytest.mark.parametrize(
    "text", ["use(", "use(1", "use(1)x", "use(a=1, 2)", "use(1,,2)", "use(,1)", "use(a=1, a=2)"]
)
def test_what_is_no_call(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_call(text)


def test_pieces_between_commas() -> None:
    assert split_at_commas("") == []
    assert split_at_commas("(1,2),f(a,b),g") == ["(1,2)", "f(a,b)", "g"]
    assert split_at_commas("'a,b',it's,that's") == ["'a,b'", "it's,that's"]


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
        ("typed(1e3)", {"count": 1000}),
        ("typed(1, 1)", {"count": 1, "ratio": 1.0}),
        ("typed(1, path='3', plain=3)", {"count": 1, "path": "3", "plain": 3}),
        ("typed(count=1, path=/a b.txt, kind=b)", {"count": 1, "path": "/a b.txt", "kind": "b"}),
        ("typed(1, betas=(0.9, 1))", {"count": 1, "betas": (0.9, 1.0)}),
        ("typed(1, 2, x)", {"count": 1, "ratio": 2.0, "path": "x"}),
    ],
)
def test_arguments_are_read_by_annotation(text: str, expected: dict[str, Any]) -> None:
    found = call_with(typed, parse_call(text), "root")
    assert repr(found) == repr(typed("root", **expected))


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

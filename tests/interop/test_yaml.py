"""YAML as plain data: what PyYAML would swallow or run is refused, and texts come back."""

import random
from typing import Any

import pytest

from fidgpt.graph import ConfigError
from fidgpt.interop.yaml import Foreign, read_yaml, write_yaml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2", "line 4: 'c' is said twice"),
        ("!!python/object/apply:os.system [ls]", "tag 'tag:yaml.org,2002:python/object/apply"),
        ("a: !!binary aGk=", "is refused"),
        ("a: !!set {x}", "is refused"),
        ("a: !include b", "'!include' is refused"),
        ("a: [1", "is not YAML"),
        ("a: *x", "used before"),
        ("a: &x [*x]", "inside of what it names"),
        ("", "is empty"),
        ("1\n---\n2", "a second document"),
        ("? [1]\n: 2", "a key is"),
        ("<<: 3", "takes a mapping"),
        ("a: \x00", "is not YAML"),
        ("a: " + "9" * 9000, "is no int"),
        ("a: " + "[" * 50_000, "more than 10,000 lists and mappings"),
    ],
)
def test_what_is_no_plain_data_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match="^the YAML file") as error:
        read_yaml(text)
    assert message in str(error.value)


def test_merges_that_repeat_without_end_are_refused() -> None:
    keys = ", ".join(f"k{i}: 1" for i in range(1000))
    merges = "\n".join(f"m{i}: {{<<: *a}}" for i in range(200))
    with pytest.raises(ConfigError, match="more than 100,000 entries"):
        read_yaml(f"a: &a {{{keys}}}\n{merges}")


def test_values_are_read_as_omegaconf_reads_them() -> None:
    assert read_yaml("a: 1e-3\nb: 1E3\nc: 2001-01-01\nd: yes\ne: ~\nf: 0x1f\ng: .5\nh: '1'") == {
        **{"a": 1e-3, "b": 1000.0, "c": "2001-01-01", "d": True},
        **{"e": None, "f": 31, "g": 0.5, "h": "1"},
    }


def test_merges_give_way_to_what_is_said() -> None:
    merged = read_yaml("a: &a {x: 1, y: 2}\nb: {<<: [*a, {y: 3, z: 4}], x: 5}")
    assert merged["b"] == {"x": 5, "y": 2, "z": 4}


def test_aliases_are_one_object_and_foreign_tags_are_kept() -> None:
    found = read_yaml("a: &a [1]\nb: *a\nc: !include d.yaml", foreign=("!include",))
    assert found["a"] is found["b"]
    assert found["c"] == Foreign("!include", "d.yaml")


def any_tree(rng: random.Random, depth: int) -> Any:
    kind = rng.choice("mlv" if depth else "v")
    if kind == "m":
        return {any_text(rng): any_tree(rng, depth - 1) for _ in range(rng.randrange(4))}
    if kind == "l":
        return [any_tree(rng, depth - 1) for _ in range(rng.randrange(4))]
    numbers = [rng.random() * 10 ** rng.randrange(-30, 30), rng.randrange(-99, 99), 1e22, 1.0]
    return rng.choice([None, True, False, any_text(rng), *numbers])


def any_text(rng: random.Random) -> str:
    words = [
        "no",
        "on",
        "~",
        "null",
        "1",
        "1e3",
        "0x1",
        "=",
        "<<",
        "- a",
        "a:",
        "#",
        "*a",
        "&a",
        "!",
    ]
    signs = [*":#-&*!|>'\"%@`{}[],\\ \n\t\r\x07\x85\u2028\ufeff\x7fé😀", "a", "b"]
    return rng.choice([rng.choice(words), "".join(rng.choices(signs, k=rng.randrange(8)))])


def test_any_tree_comes_back() -> None:
    rng = random.Random(0)
    for _ in range(300):
        tree = {"a": any_tree(rng, 4), "b": [any_tree(rng, 4)]}
        text = write_yaml(tree, anchors={})
        assert repr(read_yaml(text)) == repr(tree), text


def test_what_is_written_once_is_referred_to_however_deep() -> None:
    shared = {"x": [1]}
    tree: Any = [shared]
    for _ in range(1000):
        tree = {"a": tree, "b": [shared]}
    text = write_yaml(tree, anchors={id(shared): "one"})
    assert text.count("&one") == 1 and len(text) < 40_000
    found = read_yaml(text)
    assert found["b"][0] is found["a"]["b"][0]

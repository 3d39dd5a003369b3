"""YAML as plain data: what PyYAML would swallow or run is refused, and values survive."""

import random
from typing import Any

import pytest

from fidgpt.graph import ConfigError
from fidgpt.graph.yaml import Foreign, read_yaml, write_yaml


def read(text: str) -> Any:
    return read_yaml(text, schema="omegaconf")


@pytest.mark.parametrize(
    ("schema", "text", "message"),
    [
        ("omegaconf", "a: 1\nb:\n  c: 1\n  c: 2", "line 4: the key 'c' occurs twice"),
        ("omegaconf", "!!python/object/apply:os.system [ls]", "tag 'tag:yaml.org,2002:python/obj"),
        ("omegaconf", "a: !!binary aGk=", "is refused"),
        ("omegaconf", "a: !include b", "'!include' is refused"),
        ("omegaconf", "a: [1", "line 2: while parsing a flow sequence, did not find expected"),
        ("omegaconf", "", "is empty"),
        ("omegaconf", "? [1]\n: 2", "a key must be"),
        ("omegaconf", "<<: 3", "takes a mapping"),
        ("omegaconf", "a: &a {<<: *a}", "into itself"),
        ("omegaconf", "a: \x00", "is not YAML"),
        ("omegaconf", "a: " + "9" * 9000, "Exceeds the limit"),
        ("omegaconf", "a: " + "[" * 50_000, "nesting deeper than 10,000 levels"),
        ("core", "a: &a 1\nb: *a", "line 1: an alias of this value has no meaning"),
        ("core", "a: {<<: {b: 1}}", "<< has no meaning in a config file"),
        ("core", "[1]: 2", "a key must be a string"),
        ("core", "a: !!binary aGk=", "is refused"),
        ("core", "a: " + "9" * 9000, "is too large a number"),
        ("core", "a: 1e999", "is too large a number"),
        ("core", "a: " + "[" * 300, "nesting deeper than 200 levels"),
    ],
)
def test_more_than_plain_data_is_refused(schema: Any, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_yaml(text, schema=schema)
    assert message in str(error.value)


def test_values_are_read_as_omegaconf_reads_them() -> None:
    assert read("a: 1e-3\nb: 1E3\nc: 2001-01-01\nd: yes\ne: ~\nf: 0x1f\ng: .5\nh: '1'\ni: =") == {
        **{"a": 1e-3, "b": 1000.0, "c": "2001-01-01", "d": True},
        **{"e": None, "f": 31, "g": 0.5, "h": "1", "i": "="},
    }


def test_merged_entries_never_replace_own_ones() -> None:
    merged = read("a: &a {x: 1, y: 2}\nb: {<<: [*a, {y: 3, z: 4}], x: 5}")
    assert merged["b"] == {"x": 5, "y": 2, "z": 4}


def test_merges_that_double_are_read_in_linear_time() -> None:
    rows = ["a0: &a0 {x: 1}", *(f"a{i + 1}: &a{i + 1} {{<<: [*a{i}, *a{i}]}}" for i in range(99))]
    assert read("\n".join(rows))["a99"] == {"x": 1}


def test_aliases_are_one_object_and_foreign_tags_are_kept() -> None:
    text = "a: &a [1]\nb: *a\nc: !include d.yaml"
    found = read_yaml(text, schema="omegaconf", foreign=("!include",))
    assert found["a"] is found["b"]
    assert found["c"] == Foreign("!include", "d.yaml")


def random_tree(rng: random.Random, depth: int) -> Any:
    kind = rng.choice("mlv" if depth else "v")
    if kind == "m":
        return {random_text(rng): random_tree(rng, depth - 1) for _ in range(rng.randrange(4))}
    if kind == "l":
        return [random_tree(rng, depth - 1) for _ in range(rng.randrange(4))]
    numbers = [rng.random() * 10 ** rng.randrange(-30, 30), rng.randrange(-99, 99), 1e22, 1.0]
    return rng.choice([None, True, False, random_text(rng), *numbers])


def random_text(rng: random.Random) -> str:
    words = [*"~=#!y", "no", "on", "null", "1", "1e3", "0x1", "<<", "- a", "a:", "*a", "&a", "1:30"]
    signs = [*":#-&*!|>'\"%@`{}[],\\ \n\t\r\x07\x85\u2028\ufeff\x7fé😀", "a", "b"]
    return rng.choice([rng.choice(words), "".join(rng.choices(signs, k=rng.randrange(8)))])


def test_any_tree_survives() -> None:
    rng = random.Random(0)
    for _ in range(300):
        tree = {"a": random_tree(rng, 4), "b": [random_tree(rng, 4)]}
        text = write_yaml(tree)
        assert repr(read(text)) == repr(tree), text


def test_a_shared_container_is_written_once_at_any_depth() -> None:
    shared = {"x": [1]}
    tree: Any = [shared]
    for _ in range(1000):
        tree = {"a": tree, "b": [shared]}
    text = write_yaml(tree, anchors={id(shared): "one"})
    assert text.count("&one") == 1 and len(text) < 40_000
    found = read(text)
    assert found["b"][0] is found["a"]["b"][0]

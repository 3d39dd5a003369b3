"""Files with random damage: a ConfigError or a graph, and nothing imported that may not be."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.configs import debug
from fidgpt.graph import ConfigError, dump, load

from . import parts
from .hostile import nothing_is_imported, refused
from .parts import whole_graph

__all__ = ["nothing_is_imported"]  # a fixture
ALLOWED = (parts.__name__,)
PUT = [
    *(None, True, 0, -1, 1e999, "", "x", [], {}, [[]], {"part": ""}, {"part": "child"}),
    *(
        {"name": "os:system"},
        {"tuple": 1},
        {"dict": {"a": {"name": "pickle:loads"}}},
        "\0",
        10**400,
    ),
    *({"shared": ""}, {"shared": "child"}, {"one_in": "child"}, "child", "other[0]"),
    *({"Config": "subprocess:run"}, {"object": ["os:stat_result", {}]}, {"float": "x"}, 10**400),
]


def find_parameters(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside a document."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, dict | list):
            yield from find_parameters(item)


def mutated(original: dict[str, Any], chance: random.Random) -> str:
    """The document with one to three random changes, in its structure and in its text."""
    content = copy.deepcopy(original)
    for _ in range(chance.randint(1, 3)):
        container, key = chance.choice(list(find_parameters(content)))
        match chance.randrange(4):
            case 0:
                container[key] = copy.deepcopy(chance.choice(PUT))
            case 1:
                del container[key]
            case 2:
                other, its = chance.choice(list(find_parameters(content)))
                container[key] = copy.deepcopy(other[its])
            case 3 if isinstance(container, dict):
                container[
                    chance.choice(["x", "", "0", "set", "part", "shared", str(key) + "x"])
                ] = container.pop(key)
    text = json.dumps(content)
    if chance.random() < 0.3:
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(["", '"', "}", "9", "é", "\\u0000"]) + text[at + 1 :]
    return text


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_ends_in_a_config_error_or_in_a_graph(seed: int) -> None:
    chance = random.Random(seed)
    original = json.loads(dump(whole_graph() if seed % 4 else debug()))
    refusals = 0
    for _ in range(15):
        try:
            assert isinstance(load(mutated(original, chance), allowed=ALLOWED), fdl.Buildable)
        except ConfigError:
            refusals += 1
    assert refusals > 3


@pytest.mark.parametrize("seed", range(3))
def test_a_file_cut_short_is_refused(seed: int) -> None:
    text = dump(whole_graph())
    chance = random.Random(seed)
    for _ in range(20):
        refused(text[: chance.randrange(len(text) - 2)])


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_to_yaml_ends_in_a_config_error_or_in_a_graph(seed: int) -> None:
    chance = random.Random(seed)
    text = dump(whole_graph() if seed % 4 else debug(), form="yaml")
    refusals = 0
    for _ in range(15):
        lines = text.splitlines(keepends=True)
        for _ in range(chance.randint(1, 3)):
            at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
            match chance.randrange(4):
                case 0:
                    del lines[at : at + chance.randint(1, 3)]
                case 1:
                    lines.insert(at, lines[other])
                case 2:
                    lines[at] = lines[at].replace(":", chance.choice([": &a", ": *a", "", ": !!x"]))
                case 3:
                    letter = chance.choice(["\t", "- ", "{", "'", "\0", "é", "? ", "<<: "])
                    cut = chance.randrange(len(lines[at]))
                    lines[at] = lines[at][:cut] + letter + lines[at][cut:]
        try:
            assert isinstance(load("".join(lines), allowed=ALLOWED), fdl.Buildable)
        except ConfigError:
            refusals += 1
    assert refusals > 3

"""Files that are damaged or mean harm: a ConfigError, and nothing imported, called or made."""

import copy
import importlib
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.configs import debug
from fidgpt.graph import ConfigError, apply_patch, dump, dump_patch, load

from . import parts
from .parts import whole_graph

HERE = parts.__name__
PAIR = f"{HERE}:pair"
ALLOWED = (HERE,)
NAMES = [
    *("subprocess:run", "os:system", "posix:system", "builtins:eval", "builtins:__import__"),
    *("shutil:rmtree", "antigravity:geohash", "importlib:import_module", "pickle:loads"),
    *("torch:load", "torch.utils.cpp_extension:load", "torch.nn.functional:linear"),
    *("torch.nn.modules.module:Any", "torch.nn:Module.__init__", "torch.optim.optimizer:partial"),
    "torch.nn.modules.linear:torch.multiprocessing.Process",
    *("torch.optim.optimizer:functools.partial", "torch.nn.modules.no_such:Linear"),
    *("fidgpt.cli.train:run", "fidgpt.runs.building:subprocess.run", "fidgpt.data.prepare:main"),
    *("fidgpt.graph.storage.files:load", "fidgpt:__version__", "fidgpt.train.no_such:discard"),
    *("fidgpt.model.attention:F.linear", "fidgpt.model:attention"),
    "fidgpt.model.attention:_private",
    *("fidgpt.model:Transformer.__init__", "fidgpt.tags:fdl.Config", "fidgpt.tags:fdl"),
    *("fidgpt.models:Transformer", "fidgpt.model.:Transformer.x", "fidgptx.model:Transformer"),
    *("..model:Transformer", "fidgpt.model;os:system", "os", ":", "", ":system", "os:"),
    *("fidgpt.model:", "\0:\0", "a" * 100_000, f"{HERE}:enum.Enum", f"{HERE}:pathlib"),
    *(f"{HERE}:fdl.Config", f"{HERE}:no_such", f"{HERE}x:Part"),
]


@pytest.fixture(autouse=True)
def nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only packages that files may name are imported, and no module is new in the end."""
    requested: list[str] = []
    import_module = importlib.import_module

    def recording(name: str, package: str | None = None) -> Any:
        requested.append(name)
        return import_module(name, package)

    for room in ("configs", "data", "fiddlers", "interop", "model", "optim", "train", "tags"):
        import_module(f"fidgpt.{room}")
    import_module("fidgpt.graph.yaml")  # loaded for the first YAML
    before = set(sys.modules)
    monkeypatch.setattr(importlib, "import_module", recording)
    yield
    assert set(sys.modules) <= before
    assert set(requested) <= before


def refused(content: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(content if isinstance(content, str) else json.dumps(content), allowed=ALLOWED)
    message = str(caught.value)
    assert len(message) < 600
    return message


def document(**root: Any) -> dict[str, Any]:
    """Return a file with a root."""
    return {"format": "fidgpt.config", "version": 1, "parts": {"": root}}


def holding(value: Any) -> dict[str, Any]:
    return document(Config=PAIR, set={"first": value})


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:40])
def test_names_that_are_refused(name: str) -> None:
    assert "is refused" in (message := refused(document(Config=name))) or "there is no" in message
    for kind in ({"name": name}, {"object": [name, {}]}, {"enum": [name, "RED"]}):
        refused(holding(kind))
    refused(document(Config=PAIR, tags={"first": [name]}))


def test_reading_makes_and_calls_nothing() -> None:
    for value in (
        {"object": ["torch.nn.modules.linear:Linear", {"in_features": 10**9, "out_features": 1}]},
        *({"object": [f"{HERE}:{name}", {"width": 1}]} for name in ("Part", "double")),
        *({"enum": [f"{HERE}:{name}", "_make"]} for name in ("Size", "Color")),
        *({"enum": [f"{HERE}:Color", name]} for name in ("__class__", "GREEN")),
        *({"dtype": name} for name in ("_dynamo", "onnx", "torch.nn", "load")),
        *({"device": name} for name in ("nowhere", 0)),
        *({"path": 3}, {"float": "3"}, {"float": {}}, {"tuple": "abc"}, {"dict": []}),
        *({"part": []}, {"part": "first"}, {"default": "int"}, {"name": 5}, {"name": ["a"]}),
        *({"call": "x"}, {}, {"part": "", "name": ""}),
        *({"items": one} for one in ([1], [[1]], [[1, 2, 3]], [[[1], 2]], [[1, 2], [1, 3]])),
        {"items": [[{"part": ""}, 1]]},
    ):
        refused(holding(value))


@pytest.mark.parametrize(
    "root",
    [
        *({}, {"Config": 5}, {"Config": None}, {"Config": [PAIR]}, {"Config": f"{HERE}:Width"}),
        *({"Config": PAIR, "Partial": PAIR}, {"Config": PAIR, "sets": {}}, {"Config": f"{HERE}:T"}),
        *({"Config": PAIR, "set": one} for one in ([], {"third": 1}, {"__class__": 1})),
        {"Config": PAIR, "set": {"0": 1, "9" * 5000: 1}},
        *({"Config": f"{HERE}:product", "set": {key: 5}} for key in ("1", "999999999", "factors")),
        {"Config": f"{HERE}:keywords", "set": {"0": 5}},
        {"Config": PAIR, "tags": {"third": []}, "set": {"third": 1}},
        {"Config": PAIR, "tags": {"first": [f"{HERE}:Part"]}},
        *({"Config": PAIR, "tags": one} for one in ({"first": 5}, ["a"])),
        *({"TaggedValue": None}, {"TaggedValue": None, "tags": {"value": []}}),
        {"ArgFactory": PAIR, "set": {"first": {"part": ""}}},
    ],
)
def test_entries_that_are_refused(root: dict[str, Any]) -> None:
    refused(document(**root))


@pytest.mark.slow
def test_nodes_that_hold_each_other_or_are_held_by_none() -> None:
    content = holding({"part": "a"})
    for inside in ([{"part": "a"}], {"part": ""}):
        content["parts"]["a"] = {"Config": PAIR, "set": {"second": inside}}
        assert "contains itself" in refused(content)
    content["parts"] |= {"a": {"Config": PAIR}, "b": {"Config": PAIR}}
    assert "no component holds b" in refused(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((text, "is empty") for text in ("", "\ufeff\n  \n")),
        *((text, "is not JSON") for text in ("{", "[" * 100_000)),
        *((text, "is not YAML") for text in ("\0", "a: \ud800")),
        *((text, "is not a fidgpt config") for text in ("---\n#", "- a", "null", "[]", "{}", "a")),
        ("9" * 5000, "is too large a number"),
        ({"format": "fidgpt.config"}, "has version None, and this fidgpt reads 1"),
        ({"format": "fidgpt.config", "version": 2, "parts": {"": {}}}, "has version 2"),
        ({"format": "fidgpt.config", "version": "x" * 9999}, "has version"),
        ({"format": "fidgpt.config", "version": 1}, "is damaged: it has no root component"),
        *((document() | {"parts": one}, "is damaged") for one in ([], {"a": {}}, {"": 5})),
        *((document() | {"parts": {"": one}}, "is damaged") for one in ("Config", ["Config"])),
    ],
)
def test_texts_that_are_not_a_file(content: Any, message: str) -> None:
    assert message in refused(content)


@pytest.mark.slow
def test_deep_nesting_and_endless_graphs_are_refused() -> None:
    text = json.dumps(holding("HERE"))
    for opening, closing in (("[", "]"), ('{"tuple": [', "]}"), ('{"dict": {"a": ', "}}")):
        refused(text.replace('"HERE"', opening * 3000 + "1" + closing * 3000))
    content = holding({"part": "p0"})
    for i in range(60):
        below = {"part": f"p{i + 1}"}
        content["parts"][f"p{i}"] = {"Config": PAIR, "set": {"first": below, "second": below}}
    content["parts"]["p60"] = {"Config": PAIR}
    assert "expands to more than any run has" in refused(content)
    content = holding([{"part": "p"}] * 1000)
    for name, first in (("p", [{"part": "q"}] * 1000), ("q", [0] * 1000)):
        content["parts"][name] = {"Config": PAIR, "set": {"first": first}}
    assert "expands to more than" in refused(content)


@pytest.mark.parametrize(
    ("entry", "word", "message"),
    [
        ({}, "shared", "is not shared"),
        ({"one_in": ""}, "part", "is one in '': write shared"),
        ({"one_in": "b"}, "shared", "is one in b, but is referenced outside of it"),
        ({"one_in": []}, "shared", "damaged"),
        ({"one_in": "a"}, "shared", "is referenced outside of it"),
    ],
)
def test_sharing_that_is_refused(entry: dict[str, Any], word: str, message: str) -> None:
    content = holding({word: "a"})
    content["parts"]["a"] = {"Config": PAIR, **entry}
    assert message in refused(content)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        *(("NaN", 'write {"float": "nan"}'), ("-Infinity", '"-inf"')),
        *(("1e999", "is too large"), ("1e-999", "is too small")),
        ('1, "first": 2', "has 'first' twice"),
    ],
)
def test_json_that_is_refused(number: str, message: str) -> None:
    assert message in refused(json.dumps(holding(12345)).replace("12345", number))


PUT = [
    *(None, True, 0, -1, 1e999, "", "x", [], {}, [[]], {"part": ""}, {"part": "child"}, "\0"),
    *({"name": "os:system"}, {"tuple": 1}, {"dict": {"a": {"name": "pickle:loads"}}}, 10**400),
    *({"shared": ""}, {"shared": "child"}, {"one_in": "child"}, "child", "other[0]"),
    *({"Config": "subprocess:run"}, {"object": ["os:stat_result", {}]}, {"float": "x"}),
]


def items_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) inside a document."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, dict | list):
            yield from items_of(item)


def mutated(original: dict[str, Any], chance: random.Random) -> str:
    """Return a document with one to three random changes, in its structure and in its text."""
    content = copy.deepcopy(original)
    words = ["x", "", "0", "set", "part", "shared"]
    for _ in range(chance.randint(1, 3)):
        container, key = chance.choice(list(items_of(content)))
        match chance.randrange(4):
            case 0:
                container[key] = copy.deepcopy(chance.choice(PUT))
            case 1:
                del container[key]
            case 2:
                other, its = chance.choice(list(items_of(content)))
                container[key] = copy.deepcopy(other[its])
            case 3 if isinstance(container, dict):
                container[chance.choice([*words, f"{key}x"])] = container.pop(key)
    text = json.dumps(content)
    if chance.random() < 0.3:
        at = chance.randrange(len(text))
        text = text[:at] + chance.choice(["", '"', "}", "9", "é", "\\u0000"]) + text[at + 1 :]
    return text


@pytest.mark.parametrize("seed", range(25))
def test_random_damage_ends_in_a_config_error_or_in_a_graph(seed: int) -> None:
    chance = random.Random(seed)
    old, new = whole_graph(), whole_graph()
    new.child[1].other["yes"] = fdl.Config(parts.Square)
    new.width = 9
    new.other = [new.child[0], fdl.Config(parts.pair, parts.Square)]
    is_patch, cfg = seed >= 15, old if seed % 4 else debug()
    original = json.loads(dump_patch((old, new)) if is_patch else dump(cfg))
    refusals = 0
    for _ in range(20):
        text = mutated(original, chance)
        try:
            found = (
                apply_patch(old, text, allowed=ALLOWED) if is_patch else load(text, allowed=ALLOWED)
            )
            assert isinstance(found, fdl.Buildable)
        except ConfigError as error:
            assert len(str(error)) < 3000
            refusals += 1
    assert refusals > 3


def test_a_file_cut_short_is_refused() -> None:
    text = dump(whole_graph())
    for end in range(0, len(text) - 2, len(text) // 40):
        refused(text[:end])

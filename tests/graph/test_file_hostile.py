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
from fidgpt.graph import ConfigError, dump, load

from . import parts
from .parts import whole_graph

ALLOWED = (parts.__name__,)
NAMES = [
    "subprocess:run",
    "subprocess:Popen",
    "os:system",
    "posix:system",
    "builtins:eval",
    "builtins:__import__",
    "shutil:rmtree",
    "antigravity:geohash",
    "importlib:import_module",
    "pickle:loads",
    "torch:load",
    "torch.hub:load",
    "torch.utils.cpp_extension:load",
    "torch.nn.functional:linear",
    "torch.nn.modules.module:Any",
    "torch.nn.modules.module:OrderedDict",
    "torch.nn.modules.linear:torch.multiprocessing.Process",
    "torch.optim.optimizer:torch.package.PackageImporter",
    "torch.optim.optimizer:functools.partial",
    "torch.nn.modules.no_such:Linear",
    "torch.nn.intrinsic.quantized:LinearReLU",
    "torch.nn:Module.__init__",
    "torch.optimizer:X",
    "fidgpt.cli.train:run",
    "fidgpt.cli.runs:subprocess.run",
    "fidgpt.sample:main",
    "fidgpt.graph.storage.file:load",
    "fidgpt:__version__",
    "fidgpt.train.files:discard",
    "fidgpt.train.checkpoint:shutil.rmtree",
    "fidgpt.train.no_such:discard",
    "fidgpt.data.prepare:main",
    "fidgpt.model.attention:F.linear",
    "fidgpt.model.attention:_private",
    "fidgpt.model:Transformer.__init__",
    "fidgpt.model:attention",
    "fidgpt.tags:fdl.Config",
    "fidgpt.tags:fdl",
    "fidgpt.tags:fdl.Tag",
    "fidgpt.models:Transformer",
    "fidgpt.model.:Transformer.x",
    "fidgptx.model:Transformer",
    "..model:Transformer",
    "fidgpt.model;os:system",
    "os",
    ":",
    "",
    ":system",
    "os:",
    "fidgpt.model:",
    "\0:\0",
    "a" * 100_000,
    f"{parts.__name__}:enum.Enum",
    f"{parts.__name__}:pathlib",
    f"{parts.__name__}:fdl.Config",
    f"{parts.__name__}:no_such",
    f"{parts.__name__}x:Part",
]


def document(**root: Any) -> dict[str, Any]:
    """A file whose root says what is given."""
    return {"format": "fidgpt.config", "version": 1, "parts": {"": root}}


def refused(content: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(content if isinstance(content, str) else json.dumps(content), allowed=ALLOWED)
    message = str(caught.value)
    assert len(message) < 600
    return message


@pytest.fixture(autouse=True)
def nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only packages that files may speak of are asked for, and no module is new in the end."""
    asked: list[str] = []
    really = importlib.import_module

    def recording(name: str, package: str | None = None) -> Any:
        asked.append(name)
        return really(name, package)

    for room in ("configs", "data", "fiddlers", "interop", "model", "optim", "train", "tags"):
        really(f"fidgpt.{room}")
    before = set(sys.modules)
    monkeypatch.setattr(importlib, "import_module", recording)
    yield
    assert set(sys.modules) <= before
    assert set(asked) <= before


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:40])
def test_names_that_are_refused(name: str) -> None:
    assert "is refused" in (message := refused(document(Config=name))) or "there is no" in message
    for kind in ({"name": name}, {"object": [name, {}]}, {"enum": [name, "RED"]}):
        refused(document(Config=f"{parts.__name__}:pair", set={"first": kind}))
    refused(document(Config=f"{parts.__name__}:pair", tags={"first": [name]}))


def test_nothing_is_made_or_called_by_reading() -> None:
    pair = f"{parts.__name__}:pair"
    for kind in (
        {"object": ["torch.nn.modules.linear:Linear", {"in_features": 10**9, "out_features": 1}]},
        {"object": [f"{parts.__name__}:Part", {"width": 1}]},
        {"object": [f"{parts.__name__}:double", {"number": 1}]},
        {"enum": [f"{parts.__name__}:Size", "_make"]},
        {"enum": [f"{parts.__name__}:Color", "__class__"]},
        {"enum": [f"{parts.__name__}:Color", "GREEN"]},
        {"dtype": "_dynamo"},
        {"dtype": "onnx"},
        {"dtype": "torch.nn"},
        {"dtype": "load"},
        {"device": "nowhere"},
        {"device": 0},
        {"path": 3},
        {"float": "3"},
        {"float": {}},
        {"tuple": "abc"},
        {"dict": []},
        {"part": []},
        {"part": "first"},
        {"default": "int"},
        {"name": 5},
        {"name": ["a"]},
        {"call": "x"},
        {},
        {"part": "", "name": ""},
    ):
        refused(document(Config=pair, set={"first": kind}))


@pytest.mark.parametrize(
    "root",
    [
        {},
        {"Config": 5},
        {"Config": None},
        {"Config": [f"{parts.__name__}:pair"]},
        {"Config": f"{parts.__name__}:pair", "Partial": f"{parts.__name__}:pair"},
        {"Config": f"{parts.__name__}:pair", "sets": {}},
        {"Config": f"{parts.__name__}:pair", "set": []},
        {"Config": f"{parts.__name__}:pair", "set": {"third": 1}},
        {"Config": f"{parts.__name__}:pair", "set": {"__class__": 1}},
        {"Config": f"{parts.__name__}:pair", "set": {"0": 1, "9" * 5000: 1}},
        {"Config": f"{parts.__name__}:product", "set": {"1": 5}},
        {"Config": f"{parts.__name__}:product", "set": {"999999999": 5}},
        {"Config": f"{parts.__name__}:product", "set": {"factors": 5}},
        {"Config": f"{parts.__name__}:keywords", "set": {"0": 5}},
        {"Config": f"{parts.__name__}:pair", "tags": {"third": []}, "set": {"third": 1}},
        {"Config": f"{parts.__name__}:pair", "tags": {"first": 5}},
        {"Config": f"{parts.__name__}:pair", "tags": {"first": [f"{parts.__name__}:Part"]}},
        {"Config": f"{parts.__name__}:pair", "tags": ["first"]},
        {"Config": f"{parts.__name__}:Width"},
        {"Config": f"{parts.__name__}:T"},
        {"TaggedValue": None},
        {"TaggedValue": None, "tags": {"value": []}},
        {"ArgFactory": f"{parts.__name__}:pair", "set": {"first": {"part": ""}}},
    ],
)
def test_parts_that_are_none(root: dict[str, Any]) -> None:
    refused(document(**root))


def test_parts_that_hold_each_other_or_are_held_by_none() -> None:
    pair = f"{parts.__name__}:pair"
    content = document(Config=pair, set={"first": {"part": "a"}})
    content["parts"]["a"] = {"Config": pair, "set": {"second": [{"part": "a"}]}}
    assert "contains itself" in refused(content)
    content["parts"]["a"] = {"Config": pair, "set": {"second": {"part": ""}}}
    assert "contains itself" in refused(content)
    content["parts"]["a"] = {"Config": pair}
    content["parts"]["b"] = {"Config": pair}
    assert "no part holds b" in refused(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("9" * 5000, "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\0", "is not JSON"),
        ("null", "is not a fidgpt config"),
        ("[]", "is not a fidgpt config"),
        ("{}", "is not a fidgpt config"),
        ({"format": "fidgpt.config"}, "has version None, and this fidgpt reads 1"),
        ({"format": "fidgpt.config", "version": 2, "parts": {"": {}}}, "has version 2"),
        ({"format": "fidgpt.config", "version": "x" * 9999}, "has version"),
        ({"format": "fidgpt.config", "version": 1}, "is damaged: it holds no root part"),
        ({"format": "fidgpt.config", "version": 1, "parts": []}, "is damaged"),
        ({"format": "fidgpt.config", "version": 1, "parts": {"a": {}}}, "is damaged"),
        ({"format": "fidgpt.config", "version": 1, "parts": {"": 5}}, "is damaged"),
        ({"format": "fidgpt.config", "version": 1, "parts": {"": "Config"}}, "a part is one of"),
        ({"format": "fidgpt.config", "version": 1, "parts": {"": ["Config"]}}, "is damaged"),
    ],
    ids=range(17),
)
def test_texts_that_are_no_file(content: Any, message: str) -> None:
    assert message in refused(content)


def test_nesting_is_not_a_way_out() -> None:
    text = json.dumps(document(Config=f"{parts.__name__}:pair", set={"first": "HERE"}))
    for opening, closing in (("[", "]"), ('{"tuple": [', "]}"), ('{"dict": {"a": ', "}}")):
        refused(text.replace('"HERE"', opening * 3000 + "1" + closing * 3000))


PUT = [
    *(None, True, 0, -1, 1e999, "", "x", [], {}, [[]], {"part": ""}, {"part": "child"}),
    *(
        {"name": "os:system"},
        {"tuple": 1},
        {"dict": {"a": {"name": "pickle:loads"}}},
        "\0",
        10**400,
    ),
    *({"Config": "subprocess:run"}, {"object": ["os:stat_result", {}]}, {"float": "x"}, 10**400),
]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside a document."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, dict | list):
            yield from places(item)


def mutated(original: dict[str, Any], chance: random.Random) -> str:
    """The document with one to three random changes, in its structure and in its text."""
    content = copy.deepcopy(original)
    for _ in range(chance.randint(1, 3)):
        container, key = chance.choice(list(places(content)))
        match chance.randrange(4):
            case 0:
                container[key] = copy.deepcopy(chance.choice(PUT))
            case 1:
                del container[key]
            case 2:
                other, its = chance.choice(list(places(content)))
                container[key] = copy.deepcopy(other[its])
            case 3 if isinstance(container, dict):
                container[chance.choice(["x", "", "0", "set", str(key) + "x"])] = container.pop(key)
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

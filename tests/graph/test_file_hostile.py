"""Files that are damaged or mean harm: a ConfigError, and nothing imported, called or made."""

import json
from typing import Any

import pytest

from fidgpt.graph import dump

from . import parts
from .hostile import nothing_is_imported, refused
from .parts import whole_graph

__all__ = ["nothing_is_imported"]  # a fixture

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
    "fidgpt.compose.runs:subprocess.run",
    "fidgpt.cli.sample:main",
    "fidgpt.graph.storage.files:load",
    "fidgpt:__version__",
    "fidgpt.train.checkpoints.manifest:discard",
    "fidgpt.train.checkpoints.manifest:shutil.rmtree",
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
        ("", "is empty"),
        ("\ufeff\n \t\n", "is empty"),
        ("# nothing yet\n---\n# but a plan", "is empty"),
        ("#" * 100_000 + "\n" * 100_000 + "a", "is not a fidgpt config, neither JSON nor YAML"),
        ("{", "is not JSON"),
        ("9" * 5000, "is not a fidgpt config, neither JSON nor YAML"),
        ("- a\n- b\n", "is not a fidgpt config, neither JSON nor YAML"),
        ("[" * 100_000, "is not JSON"),
        ("\0", "is not a fidgpt config, neither JSON nor YAML"),
        ("a: \ud800", "is not YAML"),
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
        ({"format": "fidgpt.config", "version": 1, "parts": {"": "Config"}}, "is damaged"),
        ({"format": "fidgpt.config", "version": 1, "parts": {"": ["Config"]}}, "is damaged"),
    ],
    ids=range(22),
)
def test_texts_that_are_no_file(content: Any, message: str) -> None:
    assert message in refused(content)


def test_nesting_is_not_a_way_out() -> None:
    text = json.dumps(document(Config=f"{parts.__name__}:pair", set={"first": "HERE"}))
    for opening, closing in (("[", "]"), ('{"tuple": [', "]}"), ('{"dict": {"a": ', "}}")):
        refused(text.replace('"HERE"', opening * 3000 + "1" + closing * 3000))


def test_a_short_text_for_an_endless_graph_is_refused() -> None:
    name = f"{parts.__name__}:pair"
    content = document(Config=name, set={"first": {"part": "p0"}})
    for i in range(60):
        below = {"part": f"p{i + 1}"}
        content["parts"][f"p{i}"] = {"Config": name, "set": {"first": below, "second": below}}
    content["parts"]["p60"] = {"Config": name}
    assert "stands for more than any run has" in refused(content)
    below = [{"part": "q"}] * 1000
    content = document(Config=name, set={"first": [{"part": "p"}] * 1000})
    content["parts"] |= {"p": {"Config": name, "set": {"first": below}}}
    content["parts"] |= {"q": {"Config": name, "set": {"first": [0] * 1000}}}
    assert "stands for more than" in refused(content)


@pytest.mark.parametrize(
    ("entry", "word", "message"),
    [
        ({}, "shared", "is shared in nothing"),
        ({"one_in": ""}, "part", "is one in '': write shared"),
        ({"one_in": "b"}, "shared", "is one in b, and is held outside of it"),
        ({"one_in": []}, "shared", "damaged"),
        ({"one_in": "a"}, "shared", "is held outside of it"),
    ],
)
def test_sharing_that_is_none(entry: dict[str, Any], word: str, message: str) -> None:
    name = f"{parts.__name__}:pair"
    content = document(Config=name, set={"first": {word: "a"}})
    content["parts"]["a"] = {"Config": name, **entry}
    assert message in refused(content)


def test_a_key_said_twice_is_no_file() -> None:
    text = dump(whole_graph())
    first = text.index('"format"')
    assert "has 'format' twice" in refused(f'{text[:first]}"format": "x",\n {text[first:]}')


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("NaN", 'write {"float": "nan"}'),
        ("-Infinity", '"-inf"'),
        ("1e999", "is too large"),
        ("1e-999", "is too small"),
    ],
)
def test_numbers_that_are_none_are_no_file(number: str, message: str) -> None:
    text = json.dumps(document(Config=f"{parts.__name__}:pair", set={"first": 12345}))
    assert message in refused(text.replace("12345", number))


def test_numbers_that_are_too_large_are_no_yaml() -> None:
    text = dump(whole_graph(), form="yaml")
    assert "width: 3\n" in text
    for number in ("1e999", "9" * 5000):
        message = refused(text.replace("width: 3\n", f"width: {number}\n"))
        assert "is too large a number" in message


def test_pairs_that_are_none() -> None:
    for pairs in ([1], [[1]], [[1, 2, 3]], [[[1], 2]], [[1, 2], [1, 3]], [[{"part": ""}, 1]]):
        refused(document(Config=f"{parts.__name__}:pair", set={"first": {"items": pairs}}))

"""Files that are damaged or mean harm: a ConfigError, and nothing imported, called or made."""

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fidgpt.graph import ConfigError, load

from . import parts

HERE = parts.__name__
PAIR = f"{HERE}:pair"
ALLOWED = (HERE,)
NAMES = [
    *("subprocess:run", "os:system", "posix:system", "builtins:eval", "builtins:__import__"),
    *("shutil:rmtree", "antigravity:geohash", "importlib:import_module", "pickle:loads"),
    *("torch:load", "torch.utils.cpp_extension:load", "torch.nn.functional:linear"),
    *("torch.nn.modules.module:Any", "torch.nn:Module.__init__", "torch.optim.optimizer:partial"),
    *("fidgpt.cli.train:run", "fidgpt.runs.building:subprocess.run", "fidgpt.data.prepare:main"),
    *("fidgpt.model.attention:F.linear", "fidgpt.model:attention"),
    *("fidgpt.model:Transformer.__init__", "fidgpt.tags:fdl.Config", "fidgpt.tags:fdl"),
    *("fidgpt.model:", "\0:\0", "a" * 100_000, f"{HERE}:enum.Enum", f"{HERE}:pathlib"),
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
        *(
            {"device": "banana"},
            {"path": 3},
            {"float": "3"},
            {"float": {}},
            {"tuple": "abc"},
            {"dict": []},
        ),
        *({"part": []}, {"part": "first"}, {"default": "int"}, {"name": 5}, {"name": ["a"]}),
        *({"call": "x"}, {}, {"part": "", "name": ""}, {"device": "banana"}),
    ):
        refused(holding(value))


@pytest.mark.parametrize(
    "root",
    [
        *({}, {"Config": 5}, {"Config": None}, {"Config": [PAIR]}, {"Config": f"{HERE}:Width"}),
        *({"Config": PAIR, "Partial": PAIR}, {"Config": PAIR, "sets": {}}, {"Config": f"{HERE}:T"}),
        *({"Config": PAIR, "set": one} for one in ([], {"third": 1}, {"__class__": 1})),
        {"Config": PAIR, "tags": {"first": [f"{HERE}:Part"]}},
        *({"Config": PAIR, "tags": one} for one in ({"first": 5}, ["a"])),
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
        ({"format": "fidgpt.config", "version": 1}, "is damaged: it has no root component"),
        *((document() | {"parts": one}, "is damaged") for one in ([], {"a": {}}, {"": 5})),
    ],
)
def test_texts_that_are_not_a_file(content: Any, message: str) -> None:
    assert message in refused(content)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        *(("NaN", 'write {"float": "nan"}'), ("-Infinity", '"-inf"')),
        *(("1e999", "is too large"),),
        ('1, "first": 2', "has 'first' twice"),
    ],
)
def test_json_that_is_refused(number: str, message: str) -> None:
    assert message in refused(json.dumps(holding(12345)).replace("12345", number))

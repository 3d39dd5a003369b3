"""Files: a graph that was written and read is the same graph, and can still be changed."""

import dataclasses
import json
import random
import textwrap
from typing import Any

import fiddle as fdl
import pytest
import torch
from torch import nn

from fidgpt import configs, graph
from fidgpt.graph import ConfigError
from fidgpt.graph.yaml import Foreign, read_yaml

from . import parts
from .parts import Color, Options, Outer, Part, Width, holding, pair, scaled, whole_graph
from .test_diff import random_graph

ALLOWED = (parts.__name__, __name__)


def reloaded(cfg: Any, form: Any = "json") -> Any:
    return graph.load(graph.dump(cfg, form=form), allowed=ALLOWED)


def written(cfg: Any) -> dict[str, Any]:
    return json.loads(graph.dump(cfg))["parts"]


def test_everything_survives() -> None:
    cfg = whole_graph()
    again = reloaded(cfg)
    assert graph.outline(again) == graph.outline(cfg)
    assert graph.dump(again) == graph.dump(cfg)
    found = {graph.fingerprint(one) for one in (reloaded(graph.bind(cfg)), again, cfg)}
    assert len(found) == 1
    assert again.child[0] is again.child[2].items[0]
    again.width = 8  # what inherited it inherits it still
    built = graph.build(again)
    assert built.child[0].width == 8
    assert built.depth == 4
    assert built.child[2][1:] == [8, 5]
    assert built.other[:3] == [8 * 2 * 16, (8, 4), {"a": 8, "b": 1}]


@pytest.mark.slow
def test_every_config_survives() -> None:
    for name in configs.__all__:
        text = graph.dump(getattr(configs, name)())
        assert graph.dump(graph.load(text)) == text, name


def test_the_layout_of_a_file() -> None:
    """Nodes side by side, each under its path before those that it holds; a shared node once."""
    cfg = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=Width.new()))
    cfg.other = [cfg.child]
    document = json.loads(graph.dump(cfg))
    module = parts.__name__
    assert list(document) == ["format", "version", "fingerprint", "parts"]
    assert document["parts"] == {
        "": {
            "Config": f"{module}:Outer",
            "set": {"width": 3, "child": {"part": "child"}, "other": [{"part": "child"}]},
            "tags": {"width": [f"{module}:Width"]},
            "defaults": {"depth": 0, "rate": 0.0},
        },
        "child": {
            "Config": f"{module}:Part",
            "tags": {"width": [f"{module}:Width"]},
            "inherited": {"width": 3},
            "defaults": {"child": None, "other": None},
        },
    }


@dataclasses.dataclass(frozen=True)
class Labels:
    """Has fields named as the words of a file are."""

    part: str
    shared: str


class Hidden:
    """Something without a form in a file, and a method without a name once it is bound."""

    def method(self) -> None: ...


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Hidden(), "of type Hidden cannot be saved in a config"),
        (Hidden().method, "Hidden.method cannot be saved by name"),
        (Options(names=[fdl.Config(Part)]), "a Part is where components are not built"),  # type: ignore
    ],
)
def test_values_that_cannot_be_written_are_refused(value: Any, message: str) -> None:
    with pytest.raises(graph.ConfigError, match=message):
        graph.dump(fdl.Config(pair, value))


TEXTS = ["no", "1", "1e3", "a: b", "- a", "", " a ", "#", "null", "é→", "a\nb", "~", "[x"]


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize(
    "value",
    [
        {1: 2.0, None: [1], (2, "a"): {}, Color.RED: fdl.Config(Part, width=Width.new())},
        {"shared": "x", "more": {"shared": "y"}},
        [{"part": "x"}, {"keep": "y"}, {"tuple": []}],
        [Labels("x", "y"), Color.BLUE, float("-inf"), -0.0, 10**30],
        [torch.bfloat16, torch.device("cuda:1"), nn.GELU],
        "a\x85b \u2028 c\u2029\x7f\ufeff",
        *([text, {text: text}, (text,)] for text in TEXTS),
    ],
    ids=repr,
)
def test_values_that_look_like_words_of_a_file_survive(value: Any, form: Any) -> None:
    cfg = fdl.Config(Outer, width=Width.new(3), child=value, other=fdl.Config(pair, value))
    again = reloaded(cfg, form)
    assert repr(again) == repr(cfg)
    assert graph.fingerprint(again) == graph.fingerprint(cfg)
    assert graph.dump(again, form=form) == graph.dump(cfg, form=form)


def test_a_class_that_has_moved_within_a_room_is_found() -> None:
    text = graph.dump(configs.base()).replace("fidgpt.model:SwiGLU", "fidgpt.model.of_old:SwiGLU")
    assert "of_old" in text
    assert graph.fingerprint(graph.load(text)) == graph.fingerprint(configs.base())


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_survive(seed: int) -> None:
    rng = random.Random(seed)
    cfg = random_graph(rng, num_parts=rng.randint(1, 12))
    copies = fdl.Config(holding, [cfg, graph.clone(cfg)])
    cfg = fdl.Config(pair, copies, rng.choice([cfg, graph.clone(cfg), 1]))
    again = reloaded(cfg, "yaml" if seed % 3 else "json")
    assert graph.equal(again, cfg)
    assert graph.dump(again) == graph.dump(cfg)


SHORT = f"""
    format: fidgpt.config
    version: 1
    parts:
      "":
        Config: {parts.__name__}:pair
        set:
          first: HERE
"""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("no", "no"), ("1e-3", 1e-3), ("12:30", "12:30"), ("0777", 777), ("null", None)),
        *(("2026-11-21", "2026-11-21"), ("true", True), ('"true"', "true"), ("'1'", "1")),
        *(("[1, a, 2.5]", [1, "a", 2.5]), ("{float: inf}", float("inf")), ("&a [1]", [1])),
    ],
)
def test_yaml_written_by_hand(text: str, value: Any) -> None:
    found = graph.load(textwrap.dedent(SHORT).replace("HERE", text), allowed=ALLOWED).first
    assert found == value
    assert type(found) is type(value)


def keyed(number: int, key: Any = lambda x: x) -> int:
    """Have a default without a form in a file."""
    return key(number)


class TestMigrations:
    """Old files and constructors that have changed since."""

    @pytest.fixture(autouse=True)
    def declared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        renamed = {"count": "amount", "amount": "number"}
        monkeypatch.setattr(scaled, "RENAMED", renamed, raising=False)
        monkeypatch.setattr(scaled, "REMOVED", {"exact": True}, raising=False)
        monkeypatch.setattr(parts, "RENAMED", {"shrunk": "scaled"}, raising=False)

    @pytest.mark.parametrize(
        ("old", "new", "change"),
        [
            ("number", "amount", "the root: amount was renamed to number"),
            ("parts:scaled", "parts:shrunk", "shrunk was renamed to scaled"),
            ("8", '8, "exact": true', "the root: exact is removed; was True, as built now"),
            ("0.5", "0.25", "the root: the default of ratio is now 0.5; kept at 0.25"),
            ('"ratio": 0.5', '"depth": 2', "the root: depth is removed; its default was 2"),
            ('"ratio": 0.5', "", None),
        ],
    )
    def test_what_changed_is_read_and_named(self, old: str, new: str, change: str | None) -> None:
        text = graph.dump(fdl.Config(scaled, 8))
        head, last = text.rsplit('"parts"', 1)
        assert old in last
        text = f'{head}"parts"{last.replace(old, new)}'
        cfg, found = graph.load_with_changes(text, allowed=ALLOWED)
        assert cfg == fdl.Config(scaled, 8, **({"ratio": 0.25} if new == "0.25" else {}))
        assert found == ([change] if change else [])

    @pytest.mark.parametrize(
        ("function", "old", "new", "message"),
        [
            (scaled, '"number": 8', '"exact": false', "the root: exact was .*, but is removed"),
            (keyed, '"function"', '"type"', "key was left at its default, of"),
        ],
    )
    def test_others_are_refused(self, function: Any, old: str, new: str, message: str) -> None:
        text = graph.dump(fdl.Config(function, 8))
        assert old in text
        with pytest.raises(graph.ConfigError, match=message):
            graph.load(text.replace(old, new), allowed=ALLOWED)


def read(text: str) -> Any:
    return read_yaml(text, schema="omegaconf")


@pytest.mark.parametrize(
    ("schema", "text", "message"),
    [
        ("omegaconf", "a: 1\nb:\n  c: 1\n  c: 2", "line 4: the key 'c' occurs twice"),
        ("omegaconf", "!!python/object/apply:os.system [ls]", "tag 'tag:yaml.org,2002:python/obj"),
        ("omegaconf", "a: !include b", "'!include' is refused"),
        ("omegaconf", "", "is empty"),
        ("omegaconf", "a: " + "[" * 50_000, "nesting deeper than 10,000 levels"),
        ("core", "a: &a 1\nb: *a", "line 1: an alias of this value has no meaning"),
        ("core", "a: {<<: {b: 1}}", "<< has no meaning in a config file"),
        (
            "core",
            "a: {{b: 1}}",
            "not a mapping, as doubled braces make: a formula has quotes and single braces, such",
        ),
        ("core", "a: " + "9" * 9000, "is too large a number"),
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


def test_aliases_are_one_object_and_foreign_tags_are_kept() -> None:
    text = "a: &a [1]\nb: *a\nc: !include d.yaml"
    found = read_yaml(text, schema="omegaconf", foreign=("!include",))
    assert found["a"] is found["b"]
    assert found["c"] == Foreign("!include", "d.yaml")

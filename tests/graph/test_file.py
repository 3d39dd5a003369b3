"""Files: a graph that was written and read is the same graph, and can still be changed."""

import dataclasses
import enum
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from torch import nn

from fidgpt import configs
from fidgpt.configs import base
from fidgpt.fiddlers import unroll
from fidgpt.graph import (
    ConfigError,
    bind,
    build,
    dump,
    equal,
    find_parameter,
    fingerprint,
    load,
    outline,
)

from . import parts
from .parts import Options, Outer, Part, Width, pair, whole_graph

ALLOWED = (parts.__name__, __name__)


def reloaded(cfg: fdl.Buildable) -> Any:
    return load(dump(cfg), allowed=ALLOWED)


def test_everything_survives() -> None:
    cfg = whole_graph()
    again = reloaded(cfg)
    assert outline(again) == outline(cfg)
    assert fingerprint(again) == fingerprint(cfg)
    assert dump(again) == dump(cfg)


def test_sharing_survives() -> None:
    again = reloaded(whole_graph())
    assert again.child[0] is again.child[2].items[0]
    assert again.child[1].child is not again.child[0]


def test_what_is_open_stays_open() -> None:
    again = reloaded(whole_graph())
    again.width = 8
    built = build(again)
    assert built.child[0].width == 8
    assert built.depth == 4
    assert built.child[2][1:] == [8, 5]
    assert built.other[:3] == [8 * 2 * 16, (8, 4), {"a": 8, "b": 1}]


def test_the_bound_graph_can_be_written_too() -> None:
    cfg = bind(whole_graph())
    assert fingerprint(reloaded(cfg)) == fingerprint(whole_graph())


@pytest.mark.parametrize("name", configs.__all__)
def test_every_config_survives(name: str) -> None:
    cfg = getattr(configs, name)()
    text = dump(cfg)
    assert dump(load(text)) == text


def test_a_read_config_still_follows_and_is_still_tied() -> None:
    cfg = load(dump(base()))
    find_parameter(cfg, "model.hidden_dim").set(512)
    assert cfg.model.embedding.weight is cfg.model.unembedding.weight
    fresh = base()
    fresh.model.hidden_dim = 512
    assert fingerprint(cfg) == fingerprint(fresh)
    unroll(cfg)
    assert dump(load(dump(cfg))) == dump(cfg)


def test_a_file_reads_well() -> None:
    """Parts side by side, parents first, each under its path; a shared part once."""
    cfg = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=Width.new()))
    cfg.other = [cfg.child]
    document = json.loads(dump(cfg))
    module = parts.__name__
    assert list(document) == ["format", "version", "fingerprint", "parts"]
    assert document["parts"] == {
        "": {
            "Config": f"{module}:Outer",
            "set": {"width": 3, "child": {"shared": "child"}, "other": [{"shared": "child"}]},
            "tags": {"width": [f"{module}:Width"]},
            "defaults": {"depth": 0, "rate": 0.0},
        },
        "child": {
            "Config": f"{module}:Part",
            "one_in": "",
            "tags": {"width": [f"{module}:Width"]},
            "heard": {"width": 3},
            "defaults": {"child": None, "other": None},
        },
    }


def test_values_that_json_has_no_word_for() -> None:
    types = [torch.bfloat16, torch.device("cuda:1"), nn.GELU]
    again = reloaded(fdl.Config(pair, [float("-inf"), *types, -0.0, 10**30, "\udc80"])).first
    assert again[0] == float("-inf")
    assert again[1:4] == types
    assert str(again[4]) == "-0.0"
    assert again[5:] == [10**30, "\udc80"]
    dump(fdl.Config(pair, "\udc80")).encode("utf-8")


class Flags(enum.Flag):
    """What may be several at once."""

    A = 1
    B = 2
    C = 4


@dataclasses.dataclass(frozen=True)
class Labels:
    """Has fields named as the words of a file are."""

    part: str
    shared: str


class Local:
    """What `test_what_cannot_be_written_is_refused` makes bound methods of."""

    def method(self) -> None: ...


class Hidden:
    """Something without a form in a file."""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Hidden(), "of type Hidden cannot be saved in a config"),
        (type("Made", (), {}), "Made cannot be saved by name"),
        (Local().method, "Local.method cannot be saved by name"),
        (fdl.Config(lambda: 1), "<lambda> cannot be saved by name"),
        (torch.zeros(2), "of type Tensor cannot be saved"),
        ({b"1": 2}, "of type bytes cannot be saved"),
        ({3, 4}, "of type set cannot be saved"),
        (Options(names=[fdl.Config(Part)]), "a Part lies where parts are not built"),  # type: ignore
    ],
)
def test_what_cannot_be_written_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dump(fdl.Config(pair, value))


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize(
    "value",
    [
        {1: 2.0, None: [1], (2, "a"): {}, Flags.A: fdl.Config(Part, width=Width.new())},
        {"part": "x"},
        {"shared": "x", "more": {"shared": "y"}},
        [{"part": "x"}, {"keep": "y"}, {"tuple": []}],
        Labels("x", "y"),
        Flags.A | Flags.C,
        Flags(0),
        "a\x85b \u2028 c\u2029\x7f\ufeff",
    ],
    ids=range(8),
)
def test_what_looks_like_the_words_of_a_file_survives(value: Any, form: Any) -> None:
    cfg = fdl.Config(Outer, width=Width.new(3), child=value, other=fdl.Config(pair, value))
    text = dump(cfg, form=form)
    again = load(text, allowed=ALLOWED)
    assert repr(again) == repr(cfg)
    assert fingerprint(again) == fingerprint(cfg)
    assert dump(again, form=form) == text


def test_the_order_of_keys_that_are_no_texts_means_nothing() -> None:
    one, other = ({1: "a", 2: "b"}, {2: "b", 1: "a"})
    assert fingerprint(fdl.Config(pair, one)) == fingerprint(fdl.Config(pair, other))
    assert fingerprint(fdl.Config(pair, {1: 0})) != fingerprint(fdl.Config(pair, {"1": 0}))
    assert fingerprint(fdl.Config(pair, {1: 0})) != fingerprint(fdl.Config(pair, {True: 0}))


class TestDefaults:
    """A default that has changed since does not change an old run."""

    OLD = """
def scaled(number: int, ratio: float = 0.5, tagged: int = 1, *, key=len):
    return (number * ratio, tagged)
"""

    @pytest.fixture
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        """A module of the user's own, which a test can write anew."""
        path = tmp_path / "recipes_of_mine.py"
        path.write_text(self.OLD, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        module = importlib.import_module("recipes_of_mine")
        yield module
        del sys.modules["recipes_of_mine"]

    def rewrite(self, module: Any, source: str) -> None:
        Path(module.__file__).write_text(source, encoding="utf-8")
        importlib.reload(module)

    def test_the_old_one_is_kept(self, module: Any) -> None:
        cfg = fdl.Config(module.scaled, number=8)
        fdl.add_tag(cfg, "tagged", Width)
        text = dump(cfg)
        assert build(load(text, allowed=("recipes_of_mine", *ALLOWED))) == (4.0, 1)
        self.rewrite(module, self.OLD.replace("0.5", "0.25").replace("= 1", "= 7"))
        assert build(fdl.Config(module.scaled, number=8)) == (2.0, 7)
        again = load(text, allowed=("recipes_of_mine", *ALLOWED))
        assert build(again) == (4.0, 1)
        assert fingerprint(again) == json.loads(text)["fingerprint"]

    def test_a_new_parameter_has_its_new_default(self, module: Any) -> None:
        text = dump(fdl.Config(module.scaled, number=8))
        self.rewrite(module, self.OLD.replace("*,", "*, extra=0,"))
        assert build(load(text, allowed=("recipes_of_mine",))) == (4.0, 1)

    def test_a_parameter_that_is_gone_is_named(self, module: Any) -> None:
        text = dump(fdl.Config(module.scaled, number=8))
        self.rewrite(module, self.OLD.replace("number", "amount"))
        with pytest.raises(ConfigError, match="the root: there is no parameter 'number'"):
            load(text, allowed=("recipes_of_mine",))

    def test_a_default_without_a_form_that_has_changed_is_refused(self, module: Any) -> None:
        self.rewrite(module, self.OLD.replace("key=len", "key=lambda x: x"))
        text = dump(fdl.Config(module.scaled, number=8))
        assert build(load(text, allowed=("recipes_of_mine",))) == (4.0, 1)
        self.rewrite(module, self.OLD.replace("key=len", "key=3"))
        with pytest.raises(ConfigError, match="key was left at its default, of type function"):
            load(text, allowed=("recipes_of_mine",))

    def test_a_class_that_has_moved_within_a_room_is_found(self) -> None:
        text = dump(base()).replace("fidgpt.model:SwiGLU", "fidgpt.model.of_old:SwiGLU")
        assert "of_old" in text
        assert fingerprint(load(text)) == fingerprint(base())


@pytest.mark.parametrize("word", ["child", "\x7f" * 3])
def test_parts_that_lie_far_down_are_written_in_every_form(word: str) -> None:
    cfg = fdl.Config(Part, width=1)
    for _ in range(100):
        cfg = fdl.Config(Part, width=1, child={word: cfg})
    for form in ("json", "yaml"):
        assert equal(load(dump(cfg, form=form), allowed=ALLOWED), cfg)

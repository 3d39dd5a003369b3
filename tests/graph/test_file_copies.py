"""Files write equal parts once, and keep what is equal apart from what is shared."""

import json
import random
import textwrap
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.configs import debug, gpt2_124m
from fidgpt.fiddlers import unroll
from fidgpt.graph import ConfigError, clone, dump, fingerprint, load
from fidgpt.graph.storage.bound import equal
from fidgpt.graph.walk import parts as parts_of

from . import parts
from .parts import Outer, Part, Square, Wide, Width, double, holding, pair, scaled
from .test_diff_whole import random_graph

ALLOWED = (parts.__name__,)


def reloaded(cfg: Any, form: Any = "json") -> Any:
    return load(dump(cfg, form=form), allowed=ALLOWED)


def written(cfg: Any) -> dict[str, Any]:
    return json.loads(dump(cfg))["parts"]


def layer(table: Any, width: int = 1) -> fdl.Config:
    """Holds a part of its own twice, and a table that others hold too."""
    own = fdl.Config(Square, width)
    return fdl.Config(pair, fdl.Config(Part, width, child=own, other=own), table)


def test_equal_parts_are_written_once_and_made_as_often_as_held() -> None:
    cfg = fdl.Config(holding, [fdl.Config(Part, 1, child=fdl.Config(Square)) for _ in range(50)])
    assert list(written(cfg)) == ["", "items[0]", "items[0].child"]
    again = reloaded(cfg)
    assert len(parts_of(again)) == 101
    again.items[3].child.width = 9
    assert [part.child.width for part in again.items].count(9) == 1


def test_what_copies_share_stays_shared_and_what_each_has_stays_its_own() -> None:
    table = fdl.Config(Wide, 1)
    cfg = fdl.Config(holding, [layer(table) for _ in range(4)])
    assert [path for path, part in written(cfg).items() if "one_in" in part] == [
        "items[0].first.child",
        "items[0].second",
    ]
    again = reloaded(cfg)
    assert len({id(one.second) for one in again.items}) == 1
    assert len({id(one.first.child) for one in again.items}) == 4
    assert all(one.first.child is one.first.other for one in again.items)
    assert fingerprint(again) == fingerprint(cfg)


def test_parts_that_belong_to_different_owners_are_not_mistaken_for_each_other() -> None:
    """The insides of both are equal, but each holds what its own outside shares."""

    def outside(rate: float) -> fdl.Config:
        own = fdl.Config(Square)
        return fdl.Config(Outer, rate=rate, child=fdl.Config(pair, own, 1), other=own)

    cfg = fdl.Config(pair, outside(0.1), outside(0.2))
    again = reloaded(cfg)
    for side in (again.first, again.second):
        assert side.child.first is side.other
    assert again.first.other is not again.second.other


def test_a_part_that_hears_something_else_is_written_for_itself() -> None:
    def block(width: int) -> fdl.Config:
        return fdl.Config(Outer, width=Width.new(width), child=fdl.Config(Part, Width.new()))

    told = written(fdl.Config(holding, [block(1), block(2), block(1)]))
    assert [told[path]["heard"]["width"] for path in told if path.endswith("child")] == [1, 2]


def test_a_quantity_of_its_own_is_computed_in_each_copy() -> None:
    def block() -> fdl.Config:
        width = Width.new(fdl.Config(double, 4))
        return fdl.Config(Outer, width=width, child=[fdl.Config(Part, Width.new())])

    cfg = fdl.Config(holding, [block() for _ in range(3)])
    assert len(written(cfg)) == 4
    assert fingerprint(reloaded(cfg)) == fingerprint(cfg)


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_survive(seed: int, form: str) -> None:
    rng = random.Random(seed)
    cfg = random_graph(rng, num_parts=rng.randint(1, 12))
    cfg = fdl.Config(pair, fdl.Config(holding, [cfg, clone(cfg)]), rng.choice([cfg, clone(cfg), 1]))
    again = reloaded(cfg, form)
    assert fingerprint(again) == fingerprint(cfg)
    assert equal(again, cfg)
    assert dump(again) == dump(cfg)


@pytest.mark.parametrize("make", [debug, gpt2_124m])
def test_an_unrolled_config_is_hardly_longer(make: Any) -> None:
    cfg = make()
    once = dump(cfg)
    unroll(cfg)
    text = dump(cfg)
    assert len(text) < len(once) + 40 * len(cfg.model.blocks)
    assert dump(load(text)) == text
    assert fingerprint(load(dump(cfg, form="yaml"))) == fingerprint(cfg)


def test_one_value_is_one_line_and_a_second_argument_changes_no_other() -> None:
    one = dump(fdl.Config(Outer, width=1)).splitlines()
    two = dump(fdl.Config(Outer, width=1, child=[1, 2])).splitlines()
    ours = [line for line in one if "fingerprint" not in line and '"child"' not in line]
    assert [line.strip(",") for line in ours if line.strip(",") not in str(two)] == []
    assert '    "child": [1, 2]' in two


SHORT = f"""
    format: fidgpt.config
    version: 1
    parts:
      "":
        Config: {parts.__name__}:pair
        set:
          first: HERE
"""


def read(value: str) -> Any:
    text = textwrap.dedent(SHORT).replace("HERE", value)
    return load(text, allowed=ALLOWED).first


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("1e-3", 1e-3),
        ("12:30", "12:30"),
        ("0777", 777),
        ("2026-11-21", "2026-11-21"),
        ("null", None),
        ("true", True),
        ('"true"', "true"),
        ("'1'", "1"),
        ("[1, a, 2.5]", [1, "a", 2.5]),
        ("{float: inf}", float("inf")),
    ],
)
def test_yaml_is_read_as_it_looks(text: str, value: Any) -> None:
    assert read(text) == value
    assert type(read(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("&a [1]", None),
        ("[&a [1], *a]", "an alias .* has no meaning"),
        ("!!python/object/apply:os.system [ls]", "the tag .*os.system. is refused"),
        ("{<<: {a: 1}}", "<< has no meaning"),
        ("{a: 1, a: 2}", "twice"),
        ("{[1]: 2}", "a key must be a text"),
        ("[" * 5000, "nesting deeper|no YAML"),
        ("[1", "did not find expected"),
        ("1\n---\na: 1", "expected a single document"),
    ],
)
def test_yaml_that_is_more_than_data_is_refused(text: str, message: str | None) -> None:
    if message is None:
        assert read(text) == [1]
    else:
        with pytest.raises(ConfigError, match=message):
            read(text)


@pytest.mark.parametrize(
    "value",
    ["no", "1", "1e3", "a: b", "- a", "", " a ", "#", "null", "é→", "a\nb", "~", "%x", "x]", "[x"],
)
def test_texts_survive_yaml(value: str) -> None:
    cfg = fdl.Config(pair, value, [{value: value}, (value,)])
    assert dump(reloaded(cfg, "yaml")) == dump(cfg)


def test_what_yaml_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no form in YAML: save it as JSON"):
        dump(fdl.Config(pair, "\udc80"), form="yaml")


class TestMigrations:
    """Old files and constructors that have changed, and say so."""

    def old(self, **said: Any) -> str:
        root = {"Config": f"{parts.__name__}:scaled", "set": said}
        return json.dumps({"format": "fidgpt.config", "version": 1, "parts": {"": root}})

    def read(self, text: str) -> tuple[Any, list[str]]:
        from fidgpt.graph.storage.files import load_with_changes

        return load_with_changes(text, allowed=ALLOWED)

    @pytest.fixture(autouse=True)
    def declared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scaled, "RENAMED", {"amount": "number"}, raising=False)
        monkeypatch.setattr(scaled, "REMOVED", {"exact": True}, raising=False)

    def test_a_renamed_parameter_is_found(self) -> None:
        cfg, changes = self.read(self.old(amount=8))
        assert cfg.number == 8
        assert changes == ["the root: amount is called number now"]

    def test_a_removed_parameter_may_only_have_had_the_value_that_stands(self) -> None:
        cfg, changes = self.read(self.old(number=8, exact=True))
        assert fdl.ordered_arguments(cfg) == {"number": 8}
        assert changes == ["the root: exact is gone, and was True, as is built now"]
        for other in (False, 1):
            with pytest.raises(ConfigError, match="the root: exact was .*, and is gone"):
                self.read(self.old(number=8, exact=other))

    def test_a_parameter_may_have_been_renamed_more_than_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scaled, "RENAMED", {"count": "amount", "amount": "number"})
        cfg, changes = self.read(self.old(count=8))
        assert cfg.number == 8
        assert changes == ["the root: count is called number now"]

    def test_a_constructor_of_ones_own_package_may_be_renamed_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parts, "RENAMED", {"shrunk": "scaled"}, raising=False)
        cfg, changes = self.read(self.old(number=8).replace("parts:scaled", "parts:shrunk"))
        assert fdl.get_callable(cfg) is scaled
        assert changes == ["shrunk is called scaled now"]

    def test_a_default_that_is_gone_is_told_and_kept_where_there_is_a_place_for_it(self) -> None:
        text = dump(fdl.Config(scaled, 8)).replace('"ratio": 0.5', '"number": 3, "depth": 2')
        cfg, changes = self.read(text.replace('"number": 8', '"ratio": 0.5'))
        assert fdl.ordered_arguments(cfg) == {"number": 3, "ratio": 0.5}
        assert changes == [
            "the root: the default of number is gone, and stays 3",
            "the root: depth is gone, and was 2 by default",
        ]

    def test_both_names_at_once_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="both number and amount"):
            self.read(self.old(number=8, amount=9))

    def test_what_nobody_declared_is_named(self) -> None:
        with pytest.raises(ConfigError, match="there is no parameter 'factor'"):
            self.read(self.old(number=8, factor=2))

    def test_a_default_that_has_changed_is_told(self) -> None:
        text = dump(fdl.Config(scaled, 8)).replace('"ratio": 0.5', '"ratio": 0.25')
        cfg, changes = self.read(text)
        assert cfg.ratio == 0.25
        assert changes == ["the root: the default of ratio is 0.5 now, and stays 0.25"]
        assert self.read(dump(fdl.Config(scaled, 8)))[1] == []

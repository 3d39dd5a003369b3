"""`page`: what the HTML page of a graph holds, without a browser."""

import base64
import hashlib
import re
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers
from fidgpt.graph import ConfigErrors, fingerprint, parts, title
from fidgpt.graph.page import page
from fidgpt.graph.page.rendering import document
from fidgpt.graph.provenance import attributed_to

from .pages import Data, Reader, chain, wide
from .parts import (
    Outer,
    Part,
    Square,
    Width,
    double,
    holding,
    pair,
    product,
    scaled,
    whole_graph,
)

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]><img src=x onerror=alert(1)>",
    "\u2028 \u2029 \ud800 \x00",
    "&lt;b&gt; %%data%%",
]


def size(document: Any) -> int:
    return len(repr(document))


def test_every_part_of_base_is_there_once_with_all_its_places() -> None:
    cfg = configs.base()
    data = Data(cfg)
    shown = [node for node in data.nodes if "call" in node]
    names = [data.all["calls"][node["call"]]["name"] for node in shown]
    assert names == [title(node.value) for node in parts(cfg)]
    assert [len(node["parents"]) for node in shown] == [len(node.parents) for node in parts(cfg)]


def test_two_places_of_a_shared_part_lead_to_one_node() -> None:
    data = Data(configs.base())
    first, second = data.row("model.embedding.weight"), data.row("model.unembedding.weight")
    assert first["node"] == second["node"]
    assert len(data.nodes[first["node"]]["parents"]) == 2


def test_equal_parts_that_are_not_shared_are_two_nodes() -> None:
    data = Data(fdl.Config(pair, fdl.Config(Square), fdl.Config(Square)))
    assert data.row("first")["node"] != data.row("second")["node"]


def test_a_value_has_its_text_its_type_its_default_and_its_tag() -> None:
    data = Data(configs.base())
    row = data.row("optimizer.lr")
    assert row["text"] == "0.001"
    (tag,) = [data.all["tags"][number] for number in row["tags"]]
    assert tag == {"name": "LearningRate", "doc": "Peak learning rate, per step."}
    call = data.all["calls"][data.nodes[data.row("model")["node"]]["call"]]
    assert call["name"] == "Transformer"
    assert call["module"] == "fidgpt.model.transformer"
    assert call["doc"]
    assert call["parameters"][".dropout"] == {
        "type": "float",
        "default": "0.0",
        "doc": "probability of dropping an element of the embedding in training.",
    }


def test_an_inherited_value_names_the_row_that_sets_it() -> None:
    data = Data(configs.base())
    row = data.row("model.blocks[0].attention.hidden_dim")
    assert row["text"] == "256"
    number, step = row["from"]
    (source,) = [one for one in data.nodes[number]["rows"] if one["step"] == step]
    assert source is data.row("model.hidden_dim")


def test_defaults_and_unset_arguments_are_marked() -> None:
    data = Data(fdl.Config(Part, child=3))
    assert data.row("width") == {"step": ".width", "state": "unset"}
    assert data.row("other") == {"step": ".other", "state": "default", "text": "None"}
    assert "state" not in data.row("child")


def test_a_computed_number_has_its_result() -> None:
    cfg = configs.base()
    cfg.num_steps = 600
    data = Data(cfg)
    assert data.nodes[data.row("schedule.warmup_steps")["node"]]["result"] == "60"


def test_a_computation_that_fails_or_needs_a_part_has_none() -> None:
    failing = fdl.Config(scaled, number=fdl.Config(double, "x"), ratio="y")
    needing = fdl.Config(double, number=fdl.Config(Square))
    for cfg in (failing, needing):
        assert not any("result" in node for node in Data(fdl.Config(Part, cfg)).nodes)


def test_all_that_a_graph_can_hold_is_in_the_page() -> None:
    paths = Data(whole_graph()).paths()
    assert paths["child[1].other['tuple']"]["text"] == "(1, -2.5, inf)"
    assert paths["child[1].other['text']"]["text"] == "'a→b'"
    assert paths["child[2].items[2].value"]["text"] == "5"
    assert paths["other[0][1]"]["text"] == "2"
    assert paths["other[2].a"]["from"] == [0, ".width"]
    assert paths["other[5]"]["text"].startswith("(Color.BLUE, ")


def test_a_long_list_has_a_row_for_each_value() -> None:
    data = Data(fdl.Config(holding, list(range(100))))
    assert data.row("items[99]")["text"] == "99"


def test_assignments_are_newest_first() -> None:
    cfg = fdl.Config(Outer, width=1)
    with attributed_to("directive 2: set:width=5"):
        cfg.width = 5
    data = Data(cfg)
    newest, oldest = data.row("width")["assignments"]
    assert (newest["text"], data.place(newest["by"])) == ("5", "directive 2: set:width=5")
    assert (oldest["text"], oldest.get("by")) == ("1", None)
    assert re.search(r"test_page\.py:\d+ in test_assignments_are", data.place(oldest["where"]))


def test_a_graph_is_compared_with_another_at_the_rows_that_differ() -> None:
    old, new = configs.base(), configs.base()
    fiddlers.make_large(new)
    new.trackers.pop()
    data = Data(new, other=old)
    changes = {change["path"]: change for change in data.all["changes"]}
    width = changes["model.hidden_dim"]
    sides = [data.all[side][width[side][0]]["rows"][width[side][1]] for side in ("old", "new")]
    assert [side["text"] for side in sides] == ["256", "1280"]
    gone = changes["trackers[1]"]
    assert gone["kind"] == "PartRemoved"
    assert "new" not in gone
    number, index = gone["old"]
    assert data.all["old"][number]["rows"][index] is data.row("trackers[1]", side="old")


def test_equal_graphs_have_no_differences() -> None:
    assert document(configs.base(), other=configs.base())["changes"] == []


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_stays_a_text(text: str) -> None:
    cfg = fdl.Config(Part, child=text, other={text: fdl.Config(Square)})
    reader = Reader(page(cfg, title=text))
    plain = Reader(page(fdl.Config(Part), title="plain"))
    assert reader.tags == plain.tags
    data = Data(cfg)
    assert data.row("child")["text"] == repr(text)
    assert reader.inside("script")[1:] == plain.inside("script")[1:]
    page(cfg, title=text).encode()


def test_nothing_is_fetched_and_no_other_script_may_run() -> None:
    text = page(whole_graph(), other=fdl.Config(Part, width=1))
    reader = Reader(text)
    links = {"src", "href", "action", "data", "srcset", "poster"}
    assert not [one for attributes in reader.attributes for one in links & attributes.keys()]
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|sourceMappingURL", text)
    assert set(re.findall(r"https?://[\w./]+", text)) <= {"http://www.w3.org/2000/svg"}
    (policy,) = [one["content"] or "" for one in reader.attributes if one.get("http-equiv")]
    assert policy.startswith("default-src 'none'; ")
    for code in [*reader.inside("script")[1:], *reader.inside("style")]:
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_the_same_graph_makes_the_same_page() -> None:
    assert page(configs.base()) == page(configs.base())


def test_the_graph_is_left_as_it_was() -> None:
    cfg = configs.base()
    before = (
        fingerprint(cfg),
        {key: list(entries) for key, entries in cfg.__argument_history__.items()},
    )
    page(cfg)
    assert before == (fingerprint(cfg), dict(cfg.__argument_history__))


def test_a_page_grows_with_its_graph_and_no_faster() -> None:
    small, large = (document(wide(count)) for count in (100, 300))
    empty = size(document(wide(0)))
    assert size(large) - empty < 3.2 * (size(small) - empty)


def test_a_graph_of_many_paths_is_written_once() -> None:
    part: fdl.Config[Any] = fdl.Config(Square)
    for _ in range(60):
        part = fdl.Config(pair, part, part)
    assert len(document(part)["new"]) == 61


def test_depth_is_no_limit() -> None:
    assert len(document(chain(3000))["new"]) == 3000
    nested: list[Any] = [fdl.Config(Square)]
    for _ in range(3000):
        nested = [nested]
    assert len(document(fdl.Config(holding, nested))["new"]) == 3003


def test_a_graph_that_cannot_be_bound_has_no_page() -> None:
    with pytest.raises(ConfigErrors, match="no enclosing node sets Width"):
        page(fdl.Config(Part, width=Width.new()))


def test_a_part_with_arguments_that_have_no_name_has_a_row_for_each() -> None:
    paths = Data(fdl.Config(product, 2, 3)).paths()
    assert [paths[f"[{i}]"]["text"] for i in range(2)] == ["2", "3"]

"""`page` in a headless Chromium: a reader unfolds, searches, chooses and compares."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers, graph
from fidgpt.graph.page import page
from fidgpt.graph.provenance import attributed_to
from fidgpt.runs.part_sizes import part_sizes

from .browser import driven, opened
from .parts import Part
from .test_page import wide

Drive = Callable[..., Callable[[str], Any]]


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    """`drive(cfg, ...)(script)` returns what a script finds in the page of a config."""
    return lambda *of, **options: lambda script: driven(page(*of, **options), script, tmp_path)


def test_a_page_opens_from_a_file_under_its_own_policy(tmp_path: Path) -> None:
    dom = opened(page(configs.base(), title="base"), tmp_path)
    assert dom.count('role="treeitem"') > 100
    assert 'class="part shared">token_table</span>' in dom
    assert re.search(r'class="row dim".*?<span>eps</span>', dom)


def test_nothing_that_a_config_holds_becomes_markup(tmp_path: Path) -> None:
    bad = "</script><img src=x onerror=document.title='run'><script>document.title='run'</script>"
    cfg = fdl.Config(Part, width=1, child=bad, other={bad: bad})
    dom = opened(page(cfg, title=bad, other=fdl.Config(Part, width=2), other_title=bad), tmp_path)
    assert "<img" not in dom
    assert dom.count("<script") == 3
    assert "<title>&lt;/script&gt;" in dom


def test_a_click_shows_the_provenance(drive: Drive) -> None:
    cfg = configs.base()
    with attributed_to("directive 2: set:model.hidden_dim=128"):
        cfg.model.hidden_dim = 128
    found = drive(cfg)("""
        line("model.blocks[0].attention.hidden_dim").click();
        const panel = seen($("#panel"));
        const losers = $$("#panel .lost .plain").map(seen);
        $("#panel .link").click();
        return { panel, losers, next: seen($("#panel h2")), chosen: seen($("[aria-selected]")) };
        """)
    assert "type int Why inherited from model.hidden_dim through HiddenDim" in found["panel"]
    assert "directive 2: set:model.hidden_dim=128" in found["panel"]
    assert "Width of the residual stream" in found["panel"]
    assert found["losers"] == ["256"]
    assert found["next"] == "model.hidden_dim"
    assert found["chosen"].startswith("hidden_dim 128")


def test_a_shared_part_leads_to_all_its_places(drive: Drive) -> None:
    found = drive(configs.base())("""
        const shared = seen(line("model.unembedding.weight"));
        line("model.unembedding.weight").click();
        const places = $$("#panel .link").map(seen);
        line("model.unembedding.weight").querySelector(".link").click();
        return { shared, places, chosen: $("[aria-selected] .name").title };
        """)
    assert found["shared"] == "weight token_table is model.embedding.weight"
    assert {"model.embedding.weight", "model.unembedding.weight"} <= set(found["places"])
    assert found["chosen"] == "model.embedding.weight"


def test_a_search_asks_paths_tags_types_and_docs(drive: Drive) -> None:
    found = drive(configs.base())("""
        const asked = ["attention head_dim", "tag:warmup", "type:RMSNorm", "doc:residual", "xyzzy"];
        return Object.fromEntries(asked.map((query) => {
          type(query);
          return [query, $$(".result .path").map(seen)];
        }));
        """)
    assert found["attention head_dim"][0] == "model.blocks[0].attention.head_dim"
    assert found["tag:warmup"] == ["schedule.warmup_steps"]
    assert "model.norm" in found["type:RMSNorm"]
    assert "model.hidden_dim" in found["doc:residual"]
    assert found["xyzzy"] == []


def test_the_keys_are_enough(drive: Drive) -> None:
    found = drive(configs.base())("""
        press("g");
        press("/");
        const isSearching = document.activeElement.id === "query";
        type("model.norm.eps");
        press("Enter");
        const found = $("[aria-selected] .name").title;
        press("ArrowLeft");
        const above = $("[aria-selected] .name").title;
        const count = lines().length;
        press("ArrowLeft");
        const folded = lines().length;
        press("ArrowRight");
        press("ArrowDown");
        const below = $("[aria-selected] .name").title;
        press("g");
        const isDrawn = !$("#graph-view").hidden;
        press("Escape");
        return { isSearching, found, above, hidden: count - folded, again: lines().length - folded,
          below, isDrawn, chosen: $$("[aria-selected]").length };
        """)
    assert found == {
        "isSearching": True,
        "found": "model.norm.eps",
        "above": "model.norm",
        "hidden": 2,
        "again": 2,
        "below": "model.norm.hidden_dim",
        "isDrawn": True,
        "chosen": 0,
    }


def test_the_graph_draws_each_part_once_and_folds(drive: Drive) -> None:
    found = drive(configs.base())("""
        $("#show-graph").click();
        const titles = $$(".box b").map(seen);
        const inside = (one) => one.getBoundingClientRect();
        const overlaps = $$(".box").filter((one, i) => $$(".box").slice(i + 1).some((two) => {
          const [a, b] = [inside(one), inside(two)];
          return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
        })).length;
        box("model").querySelector(".fold").click();
        const folded = $$(".box").length;
        box("optimizer").click();
        return { titles, overlaps, folded, chosen: seen($("#panel h2")),
          isLit: box("optimizer").hasAttribute("aria-current") };
        """)
    assert found["titles"].count("token_table") == 1
    assert len(found["titles"]) == 26  # those of the trainer's other parts are folded
    assert found["overlaps"] == 0
    assert found["folded"] == 26 - 12
    assert (found["chosen"], found["isLit"]) == ("optimizer", True)


def test_a_page_opens_on_the_model_and_the_rest_is_folded(drive: Drive) -> None:
    script = """
        const sheet = $(".sheet").getBoundingClientRect();
        const isInside = (path) => {
          const { left, right, top, bottom } = box(path).getBoundingClientRect();
          return left >= sheet.left && right <= sheet.right && top >= sheet.top &&
            bottom <= sheet.bottom;
        };
        return { isDrawn: !$("#graph-view").hidden, zoom: drawing.zoom,
          model: ["model", "model.embedding", "model.unembedding"].map(isInside),
          isFolded: !box("data.corpus"),
          rows: ["model.norm.eps", "data", "data.corpus"].map((path) => Boolean(line(path))) };
        """
    for cfg in (configs.base(), configs.deepseek_v3()):
        found = drive(cfg)(script)
        assert found.pop("zoom") >= 0.65  # where 11 pixels can be read
        assert found == {
            "isDrawn": True,
            "model": [True, True, True],
            "isFolded": True,
            "rows": [True, True, False],
        }


def test_equal_blocks_are_one_with_their_count(drive: Drive) -> None:
    cfg = configs.base()
    fiddlers.unroll(cfg)
    cfg.model.blocks[3].mlp.ffn_dim = 512
    model = graph.build(cfg).model
    found = drive(cfg, sizes=part_sizes(graph.bind(cfg).model, model, path="model"))("""
        const boxes = $$(".box").filter((one) => one.title.match(/blocks.[0-9].$/)).map(seen);
        const rows = $$(".row").filter((one) => /blocks.[0-9].$/.test(
          one.querySelector(".name").title)).map(seen);
        choose(graphs.new.rows.find((row) => graphs.new.path(row) === "model.blocks[1].mlp"));
        const lit = $(".box[aria-current]").title, panel = seen($("#panel"));
        const path = $("[aria-selected] .name").title;
        $("#show-tree").click();
        $("#unfold").click(); // all of them, while the drawing still has each once
        const all = $$(".row").filter((one) => /blocks.[0-9].$/.test(
          one.querySelector(".name").title)).length;
        $("#show-graph").click();
        drawing.draw();
        return { boxes, rows, lit, path, panel, all, drawn: seen(box("model.blocks[0]")) };
        """)
    block = 4 * 256**2 + 3 * 256 * 704 + 2 * 256  # attention, SwiGLU, norms
    assert [text.split(" ·")[0] for text in found["boxes"]] == [
        f"blocks[0–2] Block × 3 − {3 * block / 1e6:.3g} M parameters",
        f"blocks[3] Block +4 {(block - 3 * 256 * (704 - 512)) / 1e3:.3g} k parameters",
    ]
    assert [text.split(" factory")[0] for text in found["rows"]] == [
        "[0–2] Block × 3",
        "[3] Block",
    ]
    assert (found["all"], found["drawn"]) == (4, found["boxes"][0])
    assert found["lit"] == "model.blocks[0].mlp"  # which stands for the second one
    assert found["path"] == "model.blocks[1].mlp"
    assert f"parameters {3 * 256 * 704:,}" in found["panel"]


def test_a_narrow_page_is_one_column(tmp_path: Path) -> None:
    found = driven(
        page(configs.base()),
        """
        const views = ["header", "#tree-view", "#panel"].map($);
        return { isTree: $("#graph-view").hidden, wide: views.map((one) => one.scrollWidth),
          lefts: views.map((one) => one.getBoundingClientRect().left),
          tags: getComputedStyle($(".row .tags")).display };
        """,
        tmp_path,
        width=400,
    )
    assert max(found.pop("wide")) <= 400
    assert found == {"isTree": True, "lefts": [0, 0, 0], "tags": "none"}


def test_two_configs_stand_side_by_side(drive: Drive) -> None:
    old, new = configs.base(), configs.base()
    fiddlers.make_large(new)
    new.trackers.pop(0)
    found = drive(new, other=old, title="large", other_title="base")("""
        const marks = (kind) => $$(`.row.${kind} .name`).map((one) => one.title);
        const shown = { changed: marks("changed"), gone: marks("gone"),
          followed: marks("followed").length, width: seen(line("model.hidden_dim")) };
        const all = lines().length;
        $("#only-changes").click();
        const few = $$(".row .name").map((one) => one.title);
        line("model.hidden_dim").click();
        const panel = seen($("#panel"));
        $("#only-changes").click();
        $("#unfold").click();
        const lost = [graphs.new, graphs.old].flatMap((graph) => graph.rows.filter(
          (row) => !tree.find(row)));
        return { ...shown, all, few, panel, lost: lost.length, columns: seen($("#columns")) };
        """)
    assert found["columns"] == "name base large tags"
    assert found["changed"] == ["model.hidden_dim", "model.num_layers"]
    assert found["width"] == "hidden_dim 256 1280 HiddenDim"
    assert found["gone"] == ["trackers[0]"]
    assert found["followed"] >= 6
    paths = ["the root", "model", *found["changed"], "trackers", "trackers[0]"]
    assert found["few"] == paths
    assert found["all"] > 100
    assert found["lost"] == 0
    assert "Why in base" in found["panel"]


@pytest.mark.slow
def test_a_thousand_nodes_start_folded_and_unfold(drive: Drive) -> None:
    found = drive(wide(333))("""
        const first = lines().length;
        $("#unfold").click();
        const all = lines().length;
        $("#fold").click();
        type("child[332].child.width");
        press("/");
        $("#query").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
        const found = $("[aria-selected] .name").title;
        choose(null);
        $("#show-graph").click();
        const boxes = $$(".box").length;
        const rest = seen($(".box.rest"));
        type("child[332].other.width");
        $("#query").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
        return { first, all, found, boxes, rest, reached: Boolean(box("child[332].other")) };
        """)
    assert found["first"] < 70
    assert found["all"] > 333 * 8
    assert found["found"] == "child[332].child.width"
    assert found["boxes"] < 50
    assert found["rest"] == "and 317 more"
    assert found["reached"]

"""`page` in a headless Chromium: a reader unfolds, searches, chooses and compares."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt import configs, fiddlers, graph
from fidgpt.graph.page import page
from fidgpt.graph.provenance import attributed_to
from fidgpt.runs.part_sizes import part_sizes

from .browser import driven, opened

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

"""The page of a report in a headless Chromium: what it draws, and what clicks in it do."""

import json
import re
from pathlib import Path

import pytest
from graph.browser import driven, opened

from fidgpt.sweep.report import read_report, write_report

from .reported import Values, write_sweep

pytest.importorskip("plotly", reason="the page needs the extra `report`")

RATES = ["0.0001", "0.001", "0.01"]


def loss(values: Values) -> float:
    finals = dict(zip(RATES, [3.4, 3.0, 3.2], strict=True))
    decay = 0.1 if values.get("WeightDecay") == "0.1" else 0.0
    return finals[values["LearningRate"]] + decay + 0.01 * int(values.get("seed", "0"))


def page_of(sweep: Path) -> str:
    written = write_report(read_report(sweep))
    return written.paths[-1].read_text()


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a sweep over two axes and seeds, of which the last point diverged."""
    axes = {"LearningRate": RATES, "WeightDecay": ["0", "0.1"], "seed": ["0", "1"]}
    sweep = tmp_path_factory.mktemp("grid") / "grid"
    return page_of(write_sweep(sweep, axes, loss, statuses={11: "diverged"}))


def test_a_page_opens_from_a_file_under_its_own_policy(grid: str, tmp_path: Path) -> None:
    dom = opened(grid, tmp_path)
    assert 'data-ready="yes"' in dom
    assert dom.count('class="main-svg"') >= 8  # Plotly's, two or three in each plot
    assert "LearningRate=0.001 WeightDecay=0 won" in dom
    assert "12 points: 11 finished, 1 diverged" in dom
    assert "python train.py --config=config:debug" in dom
    buttons = set(re.findall(r'class="modebar-btn[^>]*aria-label="([^"]*)"', dom))
    assert buttons == {"Zoom", "Pan", "Reset axes", "Download plot as a PNG"}  # none sends anything


def test_a_page_asks_for_nothing_from_outside(grid: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', grid)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; form-action 'none'")
    assert not re.search(r"<(script|img|link|iframe)[^>]+(src|href)=", grid)


def test_plots_show_what_was_measured(grid: str, tmp_path: Path) -> None:
    told = driven(
        grid,
        """
        const data = (id) => document.getElementById(id).data;
        const rate = document.querySelector("#axes > div");
        return {
          curves: data("curves").map((one) => one.x.length),
          legend: data("curves").filter((one) => one.showlegend).map((one) => one.name),
          kind: rate.layout.xaxis.type,
          lines: rate.data.filter((one) => one.showlegend).map((one) => one.name),
          leaders: [...document.querySelectorAll("#leaders table")].map((one) => one.rows.length),
          linear: document.querySelectorAll("#axes > div")[1].layout.xaxis.type,
          finals: rate.data.find((one) => one.name === "a point").y,
          crosses: rate.data.find((one) => one.name === "failed or diverged").x,
          best: rate.data.find((one) => one.name === "the best").x,
          importance: data("importance")[0].y,
          cells: data("map")[0].z.map((row) => row.map((one) => +one.toFixed(3))),
          rows: document.querySelectorAll("#points tbody tr").length,
          widths: [...document.querySelectorAll("#axes > div")].map(
            (one) => one.layout.width ?? one._fullLayout.width - one.clientWidth),
        };
        """,
        tmp_path,
    )
    assert (
        sorted(told["curves"]) == [5] + [10] * 11
    )  # held-out losses, of one up to half of the way
    assert told["legend"][0] == "3.0050  LearningRate=0.001 WeightDecay=0 (2 runs)"
    assert (told["kind"], told["linear"]) == ("log", "linear")
    assert len(told["finals"]) == 11 and min(told["finals"]) == pytest.approx(3.0)
    assert (told["crosses"], told["best"]) == ([0.01], [0.001])
    assert told["lines"] == ["WeightDecay=0", "WeightDecay=0.1"]
    assert told["leaders"] == [4, 3]
    assert told["importance"] == ["LearningRate", "WeightDecay", "seed (repeats)"]
    assert told["cells"] == [[3.405, 3.005, 3.205], [3.505, 3.105, 3.3]]
    assert told["rows"] == 12
    assert told["widths"] == pytest.approx(
        [0, 0], abs=1
    )  # each plot fills its place, and no other's


def test_two_clicks_tell_in_what_configs_differ(grid: str, tmp_path: Path) -> None:
    told = driven(
        grid,
        """
        const rows = () => [...document.querySelectorAll("#points tbody tr")];
        const texts = (one, count) => one && count ? [one.textContent,
          ...texts(one.nextSibling, count - 1)] : [];
        const shown = () => [...document.querySelectorAll("#difference dt")].map(
          (term) => texts(term, 3));
        const first = shown();
        const row = (name) => rows().find((one) => one.cells[1].textContent === name);
        row("LearningRate=0.0001 WeightDecay=0 seed=1").click();
        const rate = document.querySelector("#axes > div");
        rate.emit("plotly_click", { points: [{ customdata: 2, data: {} }] });
        return { first, second: shown(), marked: rows().filter((one) => one.className).length };
        """,
        tmp_path,
    )
    assert told["first"] == [["optimizer.weight_decay", "A0.0", "B0.1"]]  # best, and the next
    assert told["second"] == [["seed", "A1", "B0"], ["optimizer.weight_decay", "A0.0", "B0.1"]]
    assert told["marked"] == 2


def test_the_table_is_sorted_and_filtered(grid: str, tmp_path: Path) -> None:
    told = driven(
        grid,
        """
        const names = () => [...document.querySelectorAll("#points tbody tr")].map(
          (row) => row.cells[1].textContent);
        const best = names()[0];
        document.querySelectorAll("#points th")[3].click();
        document.querySelectorAll("#points th")[3].click();
        const worst = names()[0];
        const filter = document.getElementById("filter");
        filter.value = "0.01 seed=1";
        filter.dispatchEvent(new Event("input"));
        return { best, worst, filtered: names().length };
        """,
        tmp_path,
    )
    assert told["best"] == "LearningRate=0.001 WeightDecay=0 seed=0"
    assert told["worst"] == "LearningRate=0.0001 WeightDecay=0.1 seed=1"
    assert told["filtered"] == 2


def test_an_ablation_shows_its_effects(tmp_path: Path) -> None:
    effects = {"all": 0.0, "without use_gqa": 0.1}
    axes = {"ablate": list(effects), "seed": ["0", "1"]}
    sweep = write_sweep(tmp_path / "sweep", axes, lambda v: 3 + effects[v["ablate"]])
    told = driven(
        page_of(sweep),
        """
        const shown = document.getElementById("effects");
        return { x: shown.data[1].x, text: shown.data[1].text, map: $("#map-section").hidden };
        """,
        tmp_path,
    )
    assert told["x"] == [pytest.approx(0.1)]
    assert told["text"] == ["+0.1 ± 0 over 2 pairs"]
    assert told["map"]


def test_nothing_that_a_sweep_holds_becomes_markup(tmp_path: Path) -> None:
    bad = "</script><img src=x onerror=document.title='run'>"
    sweep = write_sweep(tmp_path / bad.replace("/", "_"), {"LearningRate": RATES}, loss)
    table = sweep / "table.jsonl"
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    rows = [row | {"name": bad + row["name"], "last_words": bad} for row in rows]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dom = opened(page_of(sweep), tmp_path)
    assert 'data-ready="yes"' in dom and "<img" not in re.sub(
        r"<script.*?</script>", "", dom, flags=re.DOTALL
    )
    assert "<title>run" not in dom


def test_hundreds_of_points_make_a_page_that_still_opens(tmp_path: Path) -> None:
    axes = {"LearningRate": RATES, "WeightDecay": ["0"]}
    sweep = write_sweep(tmp_path / "sweep", axes, loss)
    table = sweep / "table.jsonl"
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    many = [
        row
        | {"name": f"{row['name']} decay={at}", "fingerprint": f"{at}{row['fingerprint']}"}
        | {"values": row["values"] | {"WeightDecay": str(at / 100)}}
        for at in range(67)
        for row in rows
    ]
    table.write_text("".join(json.dumps(row) + "\n" for row in many))
    page = page_of(sweep)
    assert len(page) < 8e6  # of which Plotly has 4.8
    told = driven(
        page,
        """
        const shown = document.getElementById("curves");
        return { curves: shown.data.length, map: document.getElementById("map").data[0].type };
        """,
        tmp_path,
    )
    assert told == {"curves": 202, "map": "heatmap"}  # and one that holds the scale of colours

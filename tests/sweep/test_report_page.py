"""The page of a report in a headless Chromium: what it draws, and what clicks in it do."""

import re
from pathlib import Path

import pytest
from graph.browser import driven, opened

from fidgpt.sweep.report import read_report, write_page

from .reported import Values, write_sweep
from .test_report import BY_RATE, RATES, rows_of, write_rows

pytestmark = pytest.mark.slow

pytest.importorskip("plotly", reason="the page needs the extra `report`")


def loss(values: Values) -> float:
    decay = 0.1 if values.get("WeightDecay") == "0.1" else 0.0
    return BY_RATE[values["LearningRate"]] + decay + 0.01 * int(values.get("seed", "0"))


def page_of(sweep: Path) -> str:
    return write_page(read_report(sweep)).read_text()


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a sweep over two axes and seeds, of which the last point diverged."""
    axes = {"LearningRate": RATES, "WeightDecay": ["0", "0.1"], "seed": ["0", "1"]}
    sweep = tmp_path_factory.mktemp("grid") / "grid"
    return page_of(write_sweep(sweep, axes, loss, statuses={11: "diverged"}))


def test_a_page_opens_from_a_file_and_loads_nothing(grid: str, tmp_path: Path) -> None:
    dom = opened(grid, tmp_path)
    assert 'data-ready="yes"' in dom
    assert dom.count('class="main-svg"') >= 8  # Plotly's, two or three in each plot
    assert "LearningRate=0.001 WeightDecay=0 won" in dom
    assert "12 points: 11 finished, 1 diverged" in dom
    assert "python train.py --config=config:debug" in dom
    buttons = set(re.findall(r'class="modebar-btn[^>]*aria-label="([^"]*)"', dom))
    assert buttons == {"Zoom", "Pan", "Reset axes", "Download plot as a PNG"}  # none sends anything
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', grid)
    assert policy and policy[1].startswith("default-src 'none'; form-action 'none'")
    assert not re.search(r"<(script|img|link|iframe)[^>]+(src|href)=", grid)


def test_plots_show_the_measurements(grid: str, tmp_path: Path) -> None:
    shown = driven(
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
    assert sorted(shown["curves"]) == [5] + [10] * 11  # held-out losses, one half of the way
    assert shown["legend"][0] == "3.0050  LearningRate=0.001 WeightDecay=0 (2 runs)"
    assert (shown["kind"], shown["linear"]) == ("log", "linear")
    assert len(shown["finals"]) == 11 and min(shown["finals"]) == pytest.approx(3.0)
    assert (shown["crosses"], shown["best"]) == ([0.01], [0.001])
    assert shown["lines"] == ["WeightDecay=0", "WeightDecay=0.1"]
    assert shown["leaders"] == [4, 3]
    assert shown["importance"] == ["LearningRate", "WeightDecay", "seed (repeats)"]
    assert shown["cells"] == [[3.405, 3.005, 3.205], [3.505, 3.105, 3.3]]
    assert shown["rows"] == 12
    assert shown["widths"] == pytest.approx([0, 0], abs=1)  # each plot fills its own place


def test_clicks_choose_two_points_and_sort_and_filter_the_table(grid: str, tmp_path: Path) -> None:
    shown = driven(
        grid,
        """
        const rows = () => [...document.querySelectorAll("#points tbody tr")];
        const names = () => rows().map((row) => row.cells[1].textContent);
        const texts = (one, count) => one && count ? [one.textContent,
          ...texts(one.nextSibling, count - 1)] : [];
        const differences = () => [...document.querySelectorAll("#difference dt")].map(
          (term) => texts(term, 3));
        const first = differences(), best = names()[0];
        const row = (name) => rows().find((one) => one.cells[1].textContent === name);
        row("LearningRate=0.0001 WeightDecay=0 seed=1").click();
        const rate = document.querySelector("#axes > div");
        rate.emit("plotly_click", { points: [{ customdata: 2, data: {} }] });
        const second = differences(), marked = rows().filter((one) => one.className).length;
        document.querySelectorAll("#points th")[3].click();
        document.querySelectorAll("#points th")[3].click();
        const worst = names()[0], filter = document.getElementById("filter");
        filter.value = "0.01 seed=1";
        filter.dispatchEvent(new Event("input"));
        return { first, second, marked, best, worst, filtered: names().length };
        """,
        tmp_path,
    )
    decay = ["optimizer.weight_decay", "A0.0", "B0.1"]
    assert shown["first"] == [decay]  # the best, and the next
    assert shown["second"] == [["seed", "A1", "B0"], decay]
    assert shown["best"] == "LearningRate=0.001 WeightDecay=0 seed=0"
    assert shown["worst"] == "LearningRate=0.0001 WeightDecay=0.1 seed=1"
    assert (shown["marked"], shown["filtered"]) == (2, 2)


def test_texts_of_a_sweep_never_become_markup(tmp_path: Path) -> None:
    bad = "</script><img src=x onerror=document.title='run'>"
    sweep = write_sweep(tmp_path / bad.replace("/", "_"), {"LearningRate": RATES}, loss)
    rows = [row | {"name": bad + row["name"], "last_words": bad} for row in rows_of(sweep)]
    write_rows(sweep / "table.jsonl", rows)
    dom = opened(page_of(sweep), tmp_path)
    text = re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)
    assert 'data-ready="yes"' in dom and "<img" not in text and "<title>run" not in dom

"""`page`: what the HTML page of a graph holds, without a browser."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers, graph
from fidgpt.graph.page import page
from fidgpt.graph.page.rendering import document
from fidgpt.graph.provenance import attributed_to

from . import parts


class Reader(HTMLParser):
    """Reads a page as a browser does: the elements, their attributes, and the texts inside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_data(self, data: str) -> None:
        if self.elements and self.cdata_elem:
            self.elements[-1][2].append(data)

    def inside(self, tag: str) -> list[str]:
        """Return the texts of the scripts or styles."""
        return ["".join(texts) for name, _, texts in self.elements if name == tag]


class Data:
    """The data in a page, with the rows by their paths."""

    def __init__(self, root: Any, *, other: Any = None) -> None:
        self.all = json.loads(Reader(page(root, other=other)).inside("script")[0])
        self.nodes: list[dict[str, Any]] = self.all["new"]

    def row(self, path: str, *, side: str = "new") -> dict[str, Any]:
        return self.paths(side)[path]

    def paths(self, side: str = "new") -> dict[str, dict[str, Any]]:
        paths: list[str] = []
        found: dict[str, dict[str, Any]] = {}
        for node in (nodes := self.all[side]):
            steps = [paths[i] + nodes[i]["rows"][j]["step"] for i, j in node["parents"][:1]]
            paths.append("".join(steps))
            found |= {(paths[-1] + row["step"]).removeprefix("."): row for row in node["rows"]}
        return found

    def place(self, number: int | None) -> str:
        return "" if number is None else self.all["places"][number]


def wide(count: int) -> fdl.Config[parts.Outer]:
    """A graph with three times as many parts, one of which all the others hold."""
    shared, width = fdl.Config(parts.Part, width=3), parts.Width.new
    child: list[Any] = []
    for i in range(count):
        inner = fdl.ArgFactory(parts.Part, width(), shared), fdl.ArgFactory(parts.Wide, width())
        child.append(fdl.Partial(parts.Outer, width(), i, child=inner[0], other=inner[1]))
    return fdl.Config(parts.Outer, width=width(64), child=child)


HOSTILE = [
    *("</script><script>alert(1)</script>", "<!--<script>", "]]><img src=x onerror=alert(1)>"),
    *("\u2028 \u2029 \ud800 \x00", "&lt;b&gt; %%data%%"),
]


def test_every_node_is_there_once_with_all_its_places() -> None:
    cfg = configs.base()
    data = Data(cfg)
    shown = [node for node in data.nodes if "call" in node]
    assert [(data.all["calls"][node["call"]]["name"], len(node["parents"])) for node in shown] == [
        (graph.title(node.value), len(node.parents)) for node in graph.parts(cfg)
    ]
    first, second = data.row("model.embedding.weight"), data.row("model.unembedding.weight")
    assert first["node"] == second["node"]


def test_a_row_has_its_text_type_default_tag_and_source() -> None:
    data = Data(configs.base())
    row = data.row("optimizer.lr")
    assert row["text"] == "0.001"
    (tag,) = [data.all["tags"][number] for number in row["tags"]]
    assert tag == {"name": "LearningRate", "doc": "Peak learning rate, per step."}
    call = data.all["calls"][data.nodes[data.row("model")["node"]]["call"]]
    assert (call["name"], call["module"]) == ("Transformer", "fidgpt.model.transformer")
    assert call["doc"]
    assert call["parameters"][".dropout"] == {
        "type": "float",
        "default": "0.0",
        "doc": "probability of dropping an element of the embedding in training.",
    }
    row = data.row("model.blocks[0].attention.hidden_dim")
    assert (row["text"], row["from"]) == ("256", [data.row("model")["node"], ".hidden_dim"])


def test_a_computed_number_has_its_result_unless_it_fails_or_needs_a_node() -> None:
    cfg = configs.base()
    cfg.num_steps = 600
    data = Data(cfg)
    assert data.nodes[data.row("schedule.warmup_steps")["node"]]["result"] == "60"
    failing = fdl.Config(parts.scaled, number=fdl.Config(parts.double, "x"), ratio="y")
    for cfg in (failing, fdl.Config(parts.double, number=fdl.Config(parts.Square))):
        assert "result" not in Data(fdl.Config(parts.Part, cfg)).nodes[1]


def test_assignments_are_newest_first() -> None:
    cfg = fdl.Config(parts.Outer, width=1)
    with attributed_to("directive 2: set:width=5"):
        cfg.width = 5
    data = Data(cfg)
    newest, oldest = data.row("width")["assignments"]
    assert (newest["text"], data.place(newest["by"])) == ("5", "directive 2: set:width=5")
    assert (oldest["text"], oldest.get("by")) == ("1", None)
    assert re.search(r"test_page\.py:\d+ in test_assignments_are", data.place(oldest["where"]))


def test_a_graph_is_compared_with_another_row_by_row() -> None:
    old, new = configs.base(), configs.base()
    fiddlers.make_large(new)
    new.trackers.pop()
    data = Data(new, other=old)
    changes = {change["path"]: change for change in data.all["changes"]}

    def row(path: str, side: str) -> dict[str, Any]:
        number, index = changes[path][side]
        return data.all[side][number]["rows"][index]

    assert [row("model.hidden_dim", side)["text"] for side in ("old", "new")] == ["256", "1280"]
    assert row("trackers[1]", "old") is data.row("trackers[1]", side="old")
    gone = changes["trackers[1]"]
    assert gone["kind"] == "PartRemoved" and "new" not in gone
    assert document(old, other=graph.clone(old))["changes"] == []


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_stays_a_text(text: str) -> None:
    cfg = fdl.Config(parts.Part, child=text, other={text: fdl.Config(parts.Square)})
    reader = Reader(page(cfg, title=text))
    plain = Reader(page(fdl.Config(parts.Part), title="plain"))
    assert [tag for tag, *_ in reader.elements] == [tag for tag, *_ in plain.elements]
    assert Data(cfg).row("child")["text"] == repr(text)
    assert reader.inside("script")[1:] == plain.inside("script")[1:]
    page(cfg, title=text).encode()


def test_nothing_is_fetched_and_no_other_script_may_run() -> None:
    text = page(parts.whole_graph(), other=fdl.Config(parts.Part, width=1))
    reader = Reader(text)
    links = {"src", "href", "action", "data", "srcset", "poster"}
    assert not [one for _, attributes, _ in reader.elements for one in links & attributes.keys()]
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|sourceMappingURL", text)
    assert set(re.findall(r"https?://[\w./]+", text)) <= {"http://www.w3.org/2000/svg"}
    (policy,) = [one["content"] or "" for _, one, _ in reader.elements if one.get("http-equiv")]
    assert policy.startswith("default-src 'none'; ")
    for code in [*reader.inside("script")[1:], *reader.inside("style")]:
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


@pytest.mark.slow
def test_a_page_is_linear_in_its_graph() -> None:
    sizes = [len(repr(document(wide(count)))) for count in (0, 100, 300)]
    assert sizes[2] - sizes[0] < 3.2 * (sizes[1] - sizes[0])
    for depth, hold in (
        (60, lambda part: fdl.Config(parts.pair, part, part)),
        (3000, lambda part: fdl.Config(parts.holding, [part])),
    ):
        part: Any = fdl.Config(parts.Square)
        for _ in range(depth):
            part = hold(part)
        assert len(document(part)["new"]) == (depth if depth == 60 else 2 * depth) + 1

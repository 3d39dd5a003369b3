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
        self._is_open = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        self._is_open = True

    def handle_endtag(self, tag: str) -> None:
        self._is_open = False

    def handle_data(self, data: str) -> None:
        if self._is_open:
            self.elements[-1][2].append(data)

    def inside(self, tag: str) -> list[str]:
        """The texts directly inside of the elements of a kind."""
        return ["".join(texts) for name, _, texts in self.elements if name == tag]


class Data:
    """The data in a page, with the rows by their paths."""

    def __init__(self, root: Any, *, other: Any = None) -> None:
        self.all = json.loads(Reader(page(root, other=other)).inside("script")[0])
        self.nodes: list[dict[str, Any]] = self.all["new"]

    def row(self, path: str, *, side: str = "new") -> dict[str, Any]:
        return self.paths(side)[path]

    def paths(self, side: str = "new") -> dict[str, dict[str, Any]]:
        nodes = self.all[side]
        paths: list[str] = []
        found: dict[str, dict[str, Any]] = {}
        for node in nodes:
            first = node["parents"][:1]
            steps = [paths[i] + nodes[i]["rows"][j]["step"] for i, j in first]
            paths.append("".join(steps))
            for row in node["rows"]:
                found[(paths[-1] + row["step"]).removeprefix(".")] = row
        return found

    def place(self, number: int | None) -> str:
        return "" if number is None else self.all["places"][number]


def wide(count: int) -> fdl.Config[parts.Outer]:
    """A graph with three times as many parts, one of which all the others hold."""
    shared = fdl.Config(parts.Part, width=3)
    blocks = [
        fdl.Partial(
            parts.Outer,
            width=parts.Width.new(),
            depth=i,
            child=fdl.ArgFactory(parts.Part, width=parts.Width.new(), child=shared),
            other=fdl.ArgFactory(parts.Wide, width=parts.Width.new()),
        )
        for i in range(count)
    ]
    return fdl.Config(parts.Outer, width=parts.Width.new(64), child=blocks)


def chain(length: int) -> fdl.Config[parts.Part]:
    """Each part holds the next."""
    part = fdl.Config(parts.Part, width=0)
    for i in range(1, length):
        part = fdl.Config(parts.Part, width=i, child=part)
    return part


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]><img src=x onerror=alert(1)>",
    "\u2028 \u2029 \ud800 \x00",
    "&lt;b&gt; %%data%%",
]


def test_every_node_is_there_once_with_all_its_places() -> None:
    cfg = configs.base()
    data = Data(cfg)
    shown = [node for node in data.nodes if "call" in node]
    names = [data.all["calls"][node["call"]]["name"] for node in shown]
    assert names == [graph.title(node.value) for node in graph.parts(cfg)]
    assert [len(node["parents"]) for node in shown] == [
        len(node.parents) for node in graph.parts(cfg)
    ]
    first, second = data.row("model.embedding.weight"), data.row("model.unembedding.weight")
    assert first["node"] == second["node"]
    apart = Data(fdl.Config(parts.pair, fdl.Config(parts.Square), fdl.Config(parts.Square)))
    assert apart.row("first")["node"] != apart.row("second")["node"]


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
    assert row["text"] == "256"
    number, step = row["from"]
    (source,) = [one for one in data.nodes[number]["rows"] if one["step"] == step]
    assert source is data.row("model.hidden_dim")


def test_every_kind_of_value_has_a_row() -> None:
    data = Data(fdl.Config(parts.Part, child=3))
    assert data.row("width") == {"step": ".width", "state": "unset"}
    assert data.row("other") == {"step": ".other", "state": "default", "text": "None"}
    assert "state" not in data.row("child")
    paths = Data(parts.whole_graph()).paths()
    assert paths["child[1].other"]["text"].startswith("{'tuple': (1, -2.5, inf), ")
    assert paths["child[2].items[2].value"]["text"] == "5"
    assert paths["other[0][1]"]["text"] == "2"
    assert paths["other[2].a"]["from"] == [0, ".width"]
    assert paths["other[5]"]["text"].startswith("(Color.BLUE, ")
    assert Data(fdl.Config(parts.holding, list(range(10)))).row("items")["text"].endswith(", 9]")
    paths = Data(fdl.Config(parts.product, 2, 3)).paths()
    assert [paths[f"[{i}]"]["text"] for i in range(2)] == ["2", "3"]


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
    width = changes["model.hidden_dim"]
    sides = [data.all[side][width[side][0]]["rows"][width[side][1]] for side in ("old", "new")]
    assert [side["text"] for side in sides] == ["256", "1280"]
    gone = changes["trackers[1]"]
    assert gone["kind"] == "PartRemoved"
    assert "new" not in gone
    number, index = gone["old"]
    assert data.all["old"][number]["rows"][index] is data.row("trackers[1]", side="old")
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


def test_the_page_repeats_and_leaves_the_graph_as_it_was() -> None:
    cfg = configs.base()
    before = (
        graph.fingerprint(cfg),
        {key: list(one) for key, one in cfg.__argument_history__.items()},
    )
    assert page(cfg) == page(graph.clone(cfg))
    assert before == (graph.fingerprint(cfg), dict(cfg.__argument_history__))


def test_a_page_is_linear_in_its_graph() -> None:
    sizes = [len(repr(document(wide(count)))) for count in (0, 100, 300)]
    assert sizes[2] - sizes[0] < 3.2 * (sizes[1] - sizes[0])
    part: fdl.Config[Any] = fdl.Config(parts.Square)
    for _ in range(60):
        part = fdl.Config(parts.pair, part, part)
    assert len(document(part)["new"]) == 61
    assert len(document(chain(3000))["new"]) == 3000
    nested: list[Any] = [fdl.Config(parts.Square)]
    for _ in range(3000):
        nested = [nested]
    assert len(document(fdl.Config(parts.holding, nested))["new"]) == 3003


def test_a_graph_that_cannot_be_bound_has_no_page() -> None:
    with pytest.raises(graph.ConfigErrors, match="Width"):
        page(fdl.Config(parts.Part, width=parts.Width.new()))

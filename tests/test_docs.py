"""The documentation is true: every command and all code in it runs, and prints what it shows."""

import re
from pathlib import Path

import pytest
from documents import ROOT, Reader, Step, matches, steps_of

from fidgpt import configs, fiddlers

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_step_of_a_page_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    someone = Reader(tmp_path / "reader")
    someone.directory.mkdir()
    steps = steps_of(page.read_text(encoding="utf-8"))
    assert steps
    wrong = [text for step in steps if not step.is_passed_over and (text := _wrong(step, someone))]
    assert not wrong, "\n\n".join(wrong)


def _wrong(step: Step, reader: Reader) -> str | None:
    outcome = reader.run(step)
    if outcome.status == step.status and (
        step.shown is None or matches(step.shown, outcome.output)
    ):
        return None
    return f"{step.text}\nends with {outcome.status}, and prints\n{outcome.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        led_to = (page.parent / target).resolve() if target else page
        assert led_to.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in _anchors(led_to), f"{page.name} links to {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_page_of_models_names_every_family_and_feature() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`(\w+)`", page)}
    models = {*configs.__all__} - {"base", "debug"}
    assert models - named == set()
    assert {name for name in named if name.startswith("use_")} <= {*fiddlers.__all__}
    modules = ("attention", "blocks", "experts", "heads", "latent", "positions", "adapters")
    features = {
        name
        for name in fiddlers.__all__
        if getattr(fiddlers, name).__module__.rpartition(".")[2] in modules
    }
    assert features - named <= {"unroll"}


def test_a_page_is_read_as_commands_outputs_files_and_code() -> None:
    text = (
        "```sh\n$ python a.py \\\n    --b\nerror: no\n$ cat c\n```\n"
        "```python\nprint(1)\n```\n\n```text\n1\n```\n```python\n# lab/d.py\nx = 1\n```\n"
        "```sh\nmake train\npython train.py # not run: takes an hour\n```\n"
        "See:\n\n    cat a\n    cat b\n\nand\n\n    model: Transformer\n\nor\n\n    import re\n"
    )
    steps = [
        Step("python a.py --b", shown="error: no\n"),
        Step("cat c"),
        Step("print(1)\n", is_python=True, shown="1\n"),
        Step("# lab/d.py\nx = 1\n", file="lab/d.py"),
        *(Step("make train"), Step("python train.py # not run: takes an hour")),
        *(Step("cat a"), Step("cat b"), Step("import re\n", is_python=True)),
    ]
    assert steps_of(text) == steps
    assert [step.status for step in steps] == [2] + [0] * 8
    assert [step.is_passed_over for step in steps] == [False] * 4 + [True] * 2 + [False] * 3


@pytest.mark.parametrize(
    ("shown", "output", "is_alike"),
    [
        ("a\nb\n", "a  \nb\n\n", True),
        ("a ... c\n", "a b c\n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a ... c\n", "a b\nc\n", False),
        ("...\nb\n", "a\nc\n", False),
    ],
)
def test_dots_stand_for_what_varies_and_nothing_else_does(
    shown: str, output: str, is_alike: bool
) -> None:
    assert matches(shown, output) is is_alike

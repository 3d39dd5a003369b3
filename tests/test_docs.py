"""The documentation is true: every command and all code in it runs, and prints what it shows."""

import contextlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
from forked import Python
from small_models import apply_to_any
from spared import build_indexes, fork_points

from fidgpt import configs, fiddlers
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.graph import diff, fiddle, hints, parts
from fidgpt.graph.reading import fitting as fitting_names

pytestmark = pytest.mark.slow

LONGEST = 300  # seconds until a command counts as hung; what takes long is marked as not run
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
_BLOCK = re.compile(
    r"^```(?P<language>\w*)\n(?P<fenced>.*?)^```$|(?P<indented>(?:^    [^\n]*\n|^\n(?=    ))+)",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")  # a block that begins so is a file of this name
_PROGRAMS = ("python", "make", "torchrun", ".", "pip", "cat", "eval")  # as indented blocks begin
# Sets up an environment, needs several processes, or changes the reader's own shell.
_NOT_HERE = ("make", "torchrun", ".", "pip", "eval")
# Spares other Pythons, which tests of the index, of sweeps and of notebooks let commands start.
_FIRST = {"train.py": build_indexes, "sweep.py": fork_points}
_NOT_RUN = re.compile(r"#\s*not run: \w+")


@dataclass(frozen=True)
class Step:
    """One thing to run.

    Attributes:
      text: the command as the shell gets it, or Python code.
      is_python: which of both it is.
      shown: the output that the text shows; None where it shows none.
      file: the file that the text is, which is written rather than run.
    """

    text: str
    is_python: bool = False
    shown: str | None = None
    file: str | None = None

    @property
    def is_passed_over(self) -> bool:
        """Whether a test leaves it to the reader, for a reason that can be seen in the text."""
        program = self.text.split(maxsplit=1)[0]
        return not self.is_python and (program in _NOT_HERE or bool(_NOT_RUN.search(self.text)))

    @property
    def status(self) -> int:
        """The exit status: 2 where an error is shown, as a mistake of the user's ends."""
        return 2 if re.search(r"^error: ", self.shown or "", re.MULTILINE) else 0


@dataclass
class Outcome:
    """How a step ended, and all that it wrote, in the order in which it was written."""

    status: int
    output: str


def steps_of(text: str) -> list[Step]:
    """The commands and the code of a document, in order."""
    blocks = [*_BLOCK.finditer(text)]
    steps: list[Step] = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block["indented"]:
            steps += _of_indented(textwrap.dedent(block["indented"]))
        elif block["language"] == "sh":
            steps += _commands(block["fenced"])
        elif block["language"] in ("python", "yaml"):
            is_next = after is not None and not text[block.end() : after.start()].strip()
            output = after["fenced"] if after and is_next and after["language"] == "text" else None
            steps.append(_code(block["fenced"], output))
    return steps


def matches(shown: str, output: str) -> bool:
    """Whether an output is as it is shown; `...` stands for anything, alone for any lines."""
    pattern = ""
    for line in shown.strip("\n").splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pieces = [re.escape(piece) for piece in line.rstrip().split("...")]
            pattern += ".*".join(pieces) + r"[ ]*\n"
    return re.fullmatch(pattern, output.strip("\n") + "\n") is not None


@dataclass
class Reader:
    """A user who runs the commands of a document, in an own directory."""

    directory: Path
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, step: Step) -> Outcome:
        """Runs a command or code to its end."""
        if step.file is not None:
            path = self.directory / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
            return Outcome(0, "")
        if step.is_python:
            return self._python(step.text)
        return run_command(step.text, self.directory)

    def _python(self, code: str) -> Outcome:
        written = io.StringIO()
        with contextlib.redirect_stdout(written), contextlib.chdir(self.directory):
            exec(compile(code, "the document", "exec"), self.names)
        return Outcome(0, written.getvalue())


def run_command(text: str, directory: Path) -> Outcome:
    """Runs what is typed in a shell: Python in a process that has imported torch before."""
    words = shlex.split(text, comments=True)
    if "python" not in words or {"|", "&&", ";"} & set(words):
        return _shell(text, directory)
    at = words.index("python")
    extra = dict(word.split("=", 1) for word in words[:at])
    arguments, target = words[at + 1 :], None
    if ">" in arguments:
        target = directory / arguments[arguments.index(">") + 1]
        arguments = arguments[: arguments.index(">")]
    if arguments[0] != "-m":
        arguments[0] = str(ROOT / arguments[0])
    python = Python(
        *arguments,
        output=directory.parent / f"{directory.name}.out",
        printed=target,
        directory=directory,
        environment=os.environ | extra,
        first=_FIRST.get(Path(arguments[0]).name),
    )
    status = python.end(seconds=LONGEST)
    return Outcome(status, python.output)


def _shell(text: str, directory: Path) -> Outcome:
    # `python` is the one of the environment, which need not be activated where the tests run.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=directory,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return Outcome(done.returncode, done.stdout.decode())


def _code(text: str, shown: str | None) -> Step:
    path = _FILE.match(text)
    return Step(text, file=path[1]) if path else Step(text, is_python=True, shown=shown)


def _of_indented(block: str) -> list[Step]:
    """The steps of an indented block, which may be anything else, too."""
    block = block.strip("\n") + "\n"
    if block.startswith(("import ", "from ")):
        return [Step(block, True)]
    return _commands(block) if block.split(maxsplit=1)[0] in _PROGRAMS else []


def _commands(block: str) -> list[Step]:
    """The commands of a block: after each `$ `, with output below it; else one on every line."""
    block = block.replace("\\\n", "\\\0")
    if "$ " not in (block[:2], *re.findall(r"\n(\$ )", block)):
        lines = [line for line in block.splitlines() if line.strip()]
        return [Step(_joined(line)) for line in lines]
    steps = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        steps.append(Step(_joined(command), shown=shown if shown.strip() else None))
    return steps


def _joined(line: str) -> str:
    return re.sub(r"\\\0\s*", "", line)


@pytest.mark.slow(20)
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
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:benchmarks|configs|docs|fiddlers|src|tests)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"
    for target, anchor in LINK.findall(text):
        led_to = (page.parent / target).resolve() if target else page
        assert led_to.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in _anchors(led_to), f"{page.name} links to {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_page_of_models_names_every_family_and_no_fiddler_that_is_gone() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`(\w+)[`(]", page)}
    models = {*configs.__all__} - {"base", "debug"}
    assert models - named == set()
    assert {name for name in named if name.startswith("use_")} <= {*fiddlers.__all__}


CODE = [
    one
    for page in PAGES
    for one in re.findall(
        r"```.*?^```$|`[^`\n]+`|^    .*$",
        page.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
]
IN_CODE = {*re.findall(r"\w+", "\n".join(CODE))}


def changed_by_fiddlers() -> dict[str, tuple[Any, Any]]:
    """A small config before and after each fiddler, by its name."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in fiddlers.__all__:
        before, after = configs.debug(), configs.debug()
        apply_to_any(after, name)
        found[name] = before, after
    return found


def test_every_fiddler_and_component_is_in_the_documentation() -> None:
    assert {*fiddlers.__all__} - IN_CODE == set()
    changed = changed_by_fiddlers()
    rows = [row for page in PAGES for row in re.findall(r"^\| (`.*?) \|", page.read_text(), re.M)]
    in_tables = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    of_models = {
        name
        for name, (before, after) in changed.items()
        if (paths := [one.path for one in diff(before, after)])
        and all(path.startswith("model.") for path in paths)
    }
    assert len(of_models) > 20 and of_models - in_tables == set()
    # What a fiddler puts in place needs no mention of its own, and neither do base classes.
    held: set[Any] = set()
    annotations: dict[str, Any] = {}
    for part in (node.value for _, cfg in changed.values() for node in parts(cfg)):
        if fdl.get_callable(part) in held:
            continue
        held.add(fdl.get_callable(part))
        for key in fiddle.all_arguments(part):
            annotations |= {repr(one): one for one in _with_items(hints.hint_of(part, key))}
    known = {name: one for name, one in own_catalogue().parts.items() if inspect.isclass(one)}
    own = {name: one for name, one in known.items() if one.__module__.startswith("fidgpt.")}
    fitting = {name for hint in annotations.values() for name in fitting_names(hint, own)}
    bases = {base for one in own.values() for base in one.__mro__[1:]}
    components = {own[name].__name__ for name in fitting if own[name] not in bases | held}
    assert len(components) > 20 and components - IN_CODE == set()


def _with_items(hint: Any) -> list[Any]:
    """An annotation, and those of the items of a list or the values of a dict that it allows."""
    empties = [one for one in ([], {}) if any(hints.fits(one, h) for h in hints.members_of(hint))]
    keys = (0 if isinstance(one, list) else "" for one in empties)
    return [hint, *(hints.element_hint(hint, key) for key in keys)]


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

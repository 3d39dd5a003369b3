"""A kind of directive is one entry of the registry, and a command does each work once."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fidgpt
from fidgpt.cli import sweep, train
from fidgpt.cli.completion import candidates
from fidgpt.compose.composition import compose
from fidgpt.compose.directives import DIRECTIVES, Directive, split_assignment
from fidgpt.compose.report import report
from fidgpt.graph import binding, edits, fiddle
from fidgpt.sweep import axis

from .conftest import Command

PACKAGE = str(Path(fidgpt.__file__).parent)
DEBUG = "--config=config:debug"


def scale(root: Any, text: str, catalogue: Any) -> list[edits.Edit]:
    path, _, factor = split_assignment(text, signed=False)
    return edits.change_by(root, path, "*", factor, parts=catalogue.parts)


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Directive(
        *("scale", "PATH=FACTOR", "multiply a number", scale, "value=", "numbers"), relative=True
    )
    monkeypatch.setitem(DIRECTIVES, entry.kind, entry)


@pytest.mark.slow
@pytest.mark.usefixtures("scaling", "index_for")
def test_a_kind_of_directive_is_one_entry(command: Command) -> None:
    done = command(train.main, DEBUG, "--config=scale:num_steps=2", "--print=flat")
    assert (done.status, done.err) == (0, "")
    assert "\nnum_steps = 20\n" in done.out
    assert "scale:PATH=FACTOR" in " ".join(command(train.main, "--help").out.split())
    wrong = command(train.main, DEBUG, "--config=scale:num_steps", "--print").err
    assert "--config=scale:num_steps\n" in wrong and "'=' with a name before it" in wrong
    assert candidates(["fidgpt-train"], "--config=sc") == {"--config=scale:": "multiply a number"}
    found = candidates(["fidgpt-train", DEBUG], "--config=scale:num_st")
    assert list(found) == ["--config=scale:num_steps="]
    choices = axis("scale:num_steps=range(2,4)").choices
    assert [one.directives for one in choices] == [(f"scale:num_steps={n}",) for n in (2, 3)]
    done = command(sweep.main, DEBUG, "--sweep=scale:num_steps=2,3", "--print")
    assert (done.status, done.err) == (0, "") and "scale:num_steps changes" in done.out
    made = compose(["config:debug", "set:num_steps=5", "scale:num_steps=2"])
    assert not report(made).warnings
    assert made.directives[-1] == "scale:num_steps=2"
    assert "directive 3: scale:num_steps=2" in made.why("num_steps")


SHORT = (DEBUG, "--config=set:num_steps=2", "--config=set:samples=None")


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["--print", "--why=num_steps", "--dry_run", ""])
def test_a_command_binds_its_graph_once(
    command: Command, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Any] = []
    inherit_all = binding.inherit_all
    for module in [one for name, one in sys.modules.items() if name.startswith("fidgpt.graph")]:
        if vars(module).get("inherit_all") is inherit_all:
            monkeypatch.setattr(
                module,
                "inherit_all",
                lambda *args, **named: counted.append(args) or inherit_all(*args, **named),
            )
    flags = [asked] if asked else []
    assert command(train.main, *SHORT, *flags, f"--run_dir={tmp_path}/run").status == 0
    assert len(counted) == 1


def test_a_value_takes_few_steps_from_the_command_line_to_its_node() -> None:
    """As docs/architecture.md lists them."""
    chains: list[list[str]] = []

    def profile(frame: FrameType | None, event: str, _: Any) -> None:
        if frame is None or event != "call" or frame.f_code is not fiddle.assign.__code__:
            return
        if frame.f_locals["value"] == 1024:
            chains.append([])
            while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
                chains[-1].append(frame.f_code.co_filename)
                frame = frame.f_back

    compose(["config:debug"])
    sys.setprofile(profile)
    try:
        compose(["config:debug", "set:model.hidden_dim=1024"])
    finally:
        sys.setprofile(None)
    (chain,) = chains
    assert len(chain) <= 10
    assert len(set(chain)) <= 6

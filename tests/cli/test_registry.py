"""A kind of directive is one entry of the registry."""

from typing import Any

import pytest

from fidgpt.cli import sweep, train
from fidgpt.cli.completion import candidates
from fidgpt.compose.composition import compose
from fidgpt.compose.directives import DIRECTIVES, Directive, split_assignment
from fidgpt.compose.report import report
from fidgpt.graph import edits
from fidgpt.sweep import axis

from .conftest import Command

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

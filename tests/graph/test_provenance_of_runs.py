"""What a run remembers of who said what, when it goes on and when it is told to a terminal."""

import fiddle as fdl
import pytest

from fidgpt.graph.provenance import (
    Speaker,
    dump_provenance,
    restore_provenance,
    said_by,
    story,
    why_text,
)

from .parts import Part


def test_a_run_that_went_on_twice_names_itself_once() -> None:
    cfg = fdl.Config(Part, width=3)
    with said_by(Speaker("set:width=6", "directive", 2)):
        cfg.width = 6
    for _ in range(3):
        again = fdl.Config(Part, width=6)
        restore_provenance(again, dump_provenance(cfg), source="runs/x")
        cfg = again
    assert story(cfg, "width").sayings[0].by == Speaker("set:width=6", "directive", 2, "runs/x")


@pytest.mark.parametrize(
    ("written", "speaker"),
    [
        ("directive 3: set:seed=1", Speaker("set:seed=1", "directive", 3)),
        ("runs/a: directive 12: set:a=1\nb", Speaker("set:a=1\nb", "directive", 12, "runs/a")),
        ("s3://a: b: directive 1: config:x", Speaker("config:x", "directive", 1, "s3://a: b")),
        ("directive 2: set:a='directive 7: y'", Speaker("set:a='directive 7: y'", "directive", 2)),
        ("runs/a: fiddler 1: use_rope", Speaker("use_rope", "fiddler", 1, "runs/a")),
        ("directive one: set:seed=1", Speaker("directive one: set:seed=1")),
    ],
)  # fmt: skip
def test_a_file_tells_who_spoke_in_the_words_that_are_shown(written: str, speaker: Speaker) -> None:
    assert str(speaker) == written
    assert Speaker.read(written) == speaker


def test_nothing_moves_the_cursor_of_a_terminal() -> None:
    cfg = fdl.Config(Part, width=3)
    told = '{"width": [{"value": "1", "by": "\\u001b[31mme", "where": null}]}'
    restore_provenance(cfg, told)
    assert why_text(cfg, "width").splitlines()[1] == "  1  said by \\x1b[31mme"

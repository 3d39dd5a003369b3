"""What a run remembers of who said what, when it goes on and when it is told to a terminal."""

import fiddle as fdl

from fidgpt.graph.history.provenance import (
    dump_provenance,
    restore_provenance,
    said_by,
    story,
    why_text,
)

from .parts import Part


def test_a_run_that_went_on_twice_names_itself_once() -> None:
    cfg = fdl.Config(Part, width=3)
    with said_by("directive 2: set:width=6"):
        cfg.width = 6
    for _ in range(3):
        again = fdl.Config(Part, width=6)
        restore_provenance(again, dump_provenance(cfg), source="runs/x")
        cfg = again
    assert story(cfg, "width").sayings[0].by == "runs/x: directive 2: set:width=6"


def test_nothing_moves_the_cursor_of_a_terminal() -> None:
    cfg = fdl.Config(Part, width=3)
    told = '{"width": [{"value": "1", "by": "\\u001b[31mme", "where": null}]}'
    restore_provenance(cfg, told)
    assert why_text(cfg, "width").splitlines()[1] == "  1  said by \\x1b[31mme"

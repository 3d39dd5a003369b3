"""What a run remembers of who said what, when it goes on and when it is told to a terminal."""

import fiddle as fdl
import pytest

from fidgpt.graph.provenance import (
    Source,
    attributed_to,
    dump_provenance,
    provenance_of,
    restore_provenance,
    why_text,
)

from .parts import Part


def test_a_run_that_went_on_twice_names_itself_once() -> None:
    cfg = fdl.Config(Part, width=3)
    with attributed_to(Source("set:width=6", "directive", 2)):
        cfg.width = 6
    for _ in range(3):
        again = fdl.Config(Part, width=6)
        restore_provenance(again, dump_provenance(cfg), source="runs/x")
        cfg = again
    assert provenance_of(cfg, "width").sayings[0].by == Source(
        "set:width=6", "directive", 2, "runs/x"
    )


@pytest.mark.parametrize(
    ("written", "speaker"),
    [
        ("directive 3: set:seed=1", Source("set:seed=1", "directive", 3)),
        ("runs/a: directive 12: set:a=1\nb", Source("set:a=1\nb", "directive", 12, "runs/a")),
        ("s3://a: b: directive 1: config:x", Source("config:x", "directive", 1, "s3://a: b")),
        ("directive 2: set:a='directive 7: y'", Source("set:a='directive 7: y'", "directive", 2)),
        ("runs/a: fiddler 1: use_rope", Source("use_rope", "fiddler", 1, "runs/a")),
        ("directive one: set:seed=1", Source("directive one: set:seed=1")),
    ],
)  # fmt: skip
def test_a_file_tells_who_spoke_in_the_words_that_are_shown(written: str, speaker: Source) -> None:
    assert str(speaker) == written
    assert Source.read(written) == speaker


def test_nothing_moves_the_cursor_of_a_terminal() -> None:
    cfg = fdl.Config(Part, width=3)
    told = '{"width": [{"value": "1", "by": "\\u001b[31mme", "where": null}]}'
    restore_provenance(cfg, told)
    assert why_text(cfg, "width").splitlines()[1] == "  1  said by \\x1b[31mme"

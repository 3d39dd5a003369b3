"""How directives are spelled, and what is recorded of who said a value."""

import pytest

from fidgpt.cli.directives.directives import KINDS
from fidgpt.cli.directives.spelling import (
    BASES,
    Speaker,
    is_base,
    is_by_machine,
    speaker,
    speaker_in,
    split_directive,
)


@pytest.mark.parametrize(
    ("by", "found"),
    [
        (speaker(3, "set:seed=1"), (None, 3, "set:seed=1")),
        ("runs/a: directive 12: set:a=1\nb", ("runs/a", 12, "set:a=1\nb")),
        ("gs://a: b: directive 1: config:debug", ("gs://a: b", 1, "config:debug")),
        (speaker(2, "set:a=['x: directive 7: y']"), (None, 2, "set:a=['x: directive 7: y']")),
        ("fiddler 1: use_rope", None),
        ("directive one: set:seed=1", None),
        (None, None),
    ],
)  # fmt: skip
def test_a_speaker_is_read_as_it_was_written(by: str | None, found: Speaker | None) -> None:
    assert speaker_in(by) == found


def test_all_that_begin_a_graph_are_known_as_such() -> None:
    assert KINDS[: len(BASES)] == BASES
    assert [kind for kind in KINDS if is_base(f" {kind} :x")] == [*BASES]
    assert not is_base("config") and not is_base("base")


def test_a_directive_is_a_kind_and_the_rest() -> None:
    assert split_directive(" set :a=1:2") == ("set", "a=1:2")
    assert split_directive("make_large") == ("", "make_large")
    assert is_by_machine("fiddler:fidgpt.fiddlers.for_hardware (h100)")
    assert not is_by_machine("use:for_hardware")

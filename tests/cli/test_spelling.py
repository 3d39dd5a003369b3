"""How directives are spelled."""

import pytest

from fidgpt.compose.composition import compose
from fidgpt.compose.directives import DIRECTIVES, is_base, is_by_machine, split_directive
from fidgpt.graph import ConfigErrors


@pytest.mark.parametrize("kind", DIRECTIVES)
def test_every_kind_is_understood(kind: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        compose([f"{kind}:"])
    assert "there is no directive" not in str(caught.value)


def test_all_that_begin_a_graph_are_known_as_such() -> None:
    assert [kind for kind in DIRECTIVES if is_base(f" {kind} :x")] == [
        "config",
        "config_file",
        "config_str",
    ]
    assert not is_base("config") and not is_base("base")


def test_a_directive_is_a_kind_and_the_rest() -> None:
    assert split_directive(" set :a=1:2") == ("set", "a=1:2")
    assert split_directive("make_large") == ("", "make_large")
    assert is_by_machine("fiddler:fidgpt.fiddlers.for_hardware (h100)")
    assert not is_by_machine("use:for_hardware")

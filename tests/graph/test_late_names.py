"""What `fidgpt.graph` loads when it is first asked for is what it always was."""

import pytest

from fidgpt import graph


@pytest.mark.parametrize("name", graph.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(graph, name).__name__ == name


def test_what_is_not_there_is_said_as_python_says_it() -> None:
    with pytest.raises(AttributeError, match="'fidgpt.graph' has no attribute 'nothing'"):
        graph.nothing  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from fidgpt.graph import nothing")

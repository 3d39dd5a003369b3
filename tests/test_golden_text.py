"""Goldens: an equal text passes, a different one is shown, and only the option writes."""

from pathlib import Path

import pytest
from golden_text import compare_with_golden


def test_equal_texts_pass(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("one\ntwo\n", encoding="utf-8")
    compare_with_golden(path, "one\ntwo", update=False)


def test_a_difference_is_shown_as_one(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(pytest.fail.Exception) as failure:
        compare_with_golden(path, "one\nthree\n", update=False)
    message = str(failure.value)
    assert " one\n-two\n+three\n" in message
    assert "--update-goldens" in message
    assert path.read_text(encoding="utf-8") == "one\ntwo\n"


def test_a_missing_golden_fails(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    with pytest.raises(pytest.fail.Exception, match="no golden text.txt"):
        compare_with_golden(path, "one", update=False)
    assert not path.exists()


def test_the_option_writes(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "text.txt"
    compare_with_golden(path, "one", update=True)
    compare_with_golden(path, "one", update=False)

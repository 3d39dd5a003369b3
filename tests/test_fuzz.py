"""What fidgpt reads and what is typed, changed at random: no traceback, no hang, no harm."""

from collections.abc import Callable
from pathlib import Path

import fuzz
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_a_changed_file_is_read_or_refused(name: str) -> None:
    fuzz.attack(name, examples=3)


@pytest.mark.long
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_many_changes_of_a_file(name: str) -> None:
    fuzz.attack(name, examples=60, number=1)


@pytest.mark.slow
def test_the_fuzzer_notices_what_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def attack(read: Callable[[Path], object]) -> None:
        target = fuzz.Target(fuzz._text("a.json", lambda: '{"a": [1]}'), read)
        monkeypatch.setitem(fuzz.TARGETS, "mine", target)
        fuzz.attack("mine", examples=3)

    attack(lambda folder: (folder / "b").write_text(""))
    with pytest.raises((AssertionError, ExceptionGroup)):
        attack(lambda folder: (tmp_path / "b").write_text(""))
    monkeypatch.setattr(fuzz, "SECONDS", -1.0)
    with pytest.raises(AssertionError, match="it took"):
        attack(lambda folder: None)
    with pytest.raises(ZeroDivisionError):
        attack(lambda folder: 1 // len((folder / "a.json").read_bytes()[:0]))

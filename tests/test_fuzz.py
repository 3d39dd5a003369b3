"""What fidgpt reads, changed at random: no traceback, no hang, no harm."""

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

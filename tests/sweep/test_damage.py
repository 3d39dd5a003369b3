"""Files of a sweep that are damaged, removed, or written by several processes at once."""

import pytest

from fidgpt.graph import ConfigError
from fidgpt.sweep import Ending
from fidgpt.sweep.results import ResultsTable, claim, read_table

from .conftest import Toys


@pytest.mark.parametrize("text", ["name\tvalue\n", '{"name": "x"', '{"name": "x"}\n', "\xff"])
def test_a_table_that_cannot_be_read_is_named_and_kept(toys: Toys, text: str) -> None:
    toys.directory.mkdir()
    table = toys.directory / "table.jsonl"
    table.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"table\.jsonl is damaged, or no table of a sweep: "):
        claim(toys.directory)
    assert table.read_text(encoding="latin-1") == text


def test_each_process_writes_the_rows_of_its_own_points(toys: Toys) -> None:
    toys.directory.mkdir()
    jobs = toys.jobs(["1", "2"])
    one, other = ResultsTable(toys.directory, jobs), ResultsTable(toys.directory, jobs)
    one.write()
    other.started(jobs[0])
    one.started(jobs[1])
    assert [row["status"] for row in read_table(toys.directory)] == ["running", "running"]
    other.ended(jobs[0], Ending("failed", "no memory"))
    one.write()
    assert [row["status"] for row in read_table(toys.directory)] == ["failed", "running"]
    assert [row["status"] for row in one] == ["failed", "running"]
    one.ended(jobs[1], Ending("finished", ""))
    other.started(jobs[1])  # a finished point stays finished if another process starts it
    one.write()
    assert [row["status"] for row in read_table(toys.directory)] == ["failed", "finished"]

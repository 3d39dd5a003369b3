"""Programs in forked processes: as in new ones, but for the imports."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import check_output

import pytest

from fidgpt.forking import Forked, Forks
from fidgpt.sweep import Sweep, axis
from fidgpt.sweep.runners import jobs

pytestmark = [pytest.mark.slow(8), pytest.mark.xdist_group("forking")]
PROGRAM = """
import os, sys, torch
print(sys.argv[1:], os.environ["WORD"], "HOME" in os.environ, torch.get_num_threads(), flush=True)
print(os.getpid() == os.getsid(0), sys.stdin.read() == "", file=sys.stderr, flush=True)
if "wait" in sys.argv:
    import time
    time.sleep(600)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


def started(forks: Forks, folder: Path, *arguments: str) -> Forked:
    """A process of the program, which prints into a file."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    with (folder / "output").open("wb") as output:
        env = {"WORD": "yes", "OMP_NUM_THREADS": "3"}
        return forks.start([str(script), *arguments], output=output, env=env)


def ended(process: Forked) -> int:
    """The status of a process, when it has ended."""
    end = time.monotonic() + 120
    while (status := process.poll()) is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    return status


def test_a_program_has_its_arguments_variables_output_and_status(
    forks: Forks, tmp_path: Path
) -> None:
    assert ended(started(forks, tmp_path, "a", "b c")) == 3
    output = (tmp_path / "output").read_text().splitlines()
    assert output == ["['a', 'b c'] yes False 3", "True True"]


def test_signals_reach_one_process_and_not_its_neighbour(forks: Forks, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    first, second = (started(forks, folder, "wait") for folder in folders)
    first.send_signal(signal.SIGTERM)
    assert ended(first) == -signal.SIGTERM and second.poll() is None
    first.send_signal(signal.SIGTERM)  # has no effect any more
    second.send_signal(signal.SIGKILL)
    assert ended(second) == -signal.SIGKILL


def test_points_are_forked_with_the_numbers_of_new_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    losses = []
    for name, is_safe in (("forked", True), ("new", False)):
        monkeypatch.setattr(jobs.forking, "is_safe", lambda is_safe=is_safe: is_safe)
        items = ("config:debug", "set:num_steps=2", axis("tag:Seed=1,2"))
        results = Sweep(*items, directory=tmp_path / name).run()
        losses.append([row["metrics"]["loss"] for row in results])
    assert losses[0] == losses[1] and losses[0][0] != losses[0][1]


def test_a_program_starts_again_without_caches_of_small_blocks() -> None:
    code = "import os; from fidgpt import heap; heap.restart_without_cache(); print(os.environ)"
    assert check_output([sys.executable, "-c", code]).count(b"tcache_count=0") == 1

"""What every test shares: one thread per worker, a cache of the run's own, and the goldens."""

import gc
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import checked
import jaxtyping
import pytest
from golden_text import GOLDENS, Explain, compare_with_golden
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

# Workers with a pool of threads each would fight over the cores. Must precede torch's import.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# What `--jaxtyping-packages` puts on every function. Must precede the import of fidgpt.
jaxtyping.jaxtyped = checked.checked

# A shell lets what it starts in the background ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let nothing depend on the user's caches, home, or terminal.

    Prepared corpora are the run's own: shared by its workers, and not with the user.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIDGPT_CACHE", str(folder / "fidgpt-cache"))
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that accepts new texts."""
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="write what the tests see to tests/goldens instead of comparing with it",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Neither imports nor tests look through torch and all tests for garbage: 0.2 s each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


SLOW_FIXTURES = {"on_two_processes", "run", "run_directory", "train"}  # they train a model


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Mark as slow what shares a worker, as its processes or imports are costly, or trains."""
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        if item.get_closest_marker("xdist_group") or not SLOW_FIXTURES.isdisjoint(fixtures):
            item.add_marker("slow")
    yield
    if not getattr(config.option, "loadgroup", False):
        return
    seconds: dict[str, float] = defaultdict(float)
    groups: dict[pytest.Item, str] = {}
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        # pytest 9.2 ignores the suffix that xdist 3.8 sets, and every group would be scattered.
        if mark is not None and not item.nodeid.endswith(group := f"@{mark.args[0]}"):
            item._id = type(item.id).parse(f"{item.nodeid}{group}")
        groups[item] = item.nodeid if mark is None else f"@{mark.args[0]}"
        seconds[groups[item]] += seconds_of(item)
    items.sort(key=lambda item: -seconds[groups[item]])


def seconds_of(item: pytest.Item) -> float:
    """Return about how long a test takes, by its mark: `slow(40)`, `slow`, or none."""
    marks = [*item.iter_markers("slow")]
    return max((mark.args[0] for mark in marks if mark.args), default=1.0 if marks else 0.02)


class Groups(LoadGroupScheduling):
    """As `--dist=loadgroup`, but begins what takes longest first, and forgets groups that are done.

    Quick tests come last, so that all workers end together. Counting groups again whenever a test
    ends took a millisecond, on cores that the tests need.
    """

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Note that a test ended, and assign more to its process."""
        group = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(self.assigned_work[node][group].values()):
            del self.assigned_work[node][group]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two more workers than there are cores, as slow tests wait a lot; quick ones do not."""
    waiting = 0 if "not slow" in str(config.getoption("markexpr")) else 2
    return len(os.sched_getaffinity(0)) + waiting


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    """Keep groups together, as `--dist=loadgroup` does, in the order that workers collect them."""
    if config.getoption("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`golden(name, text)` fails, with a diff, unless tests/goldens/NAME.txt holds `text`.

    The text of `explain` for the new lines, where it is given, stands below the diff.
    """
    update = bool(request.config.getoption("--update-goldens"))

    def check(name: str, text: str, explain: Explain | None = None) -> None:
        path = GOLDENS / f"{name}.txt"
        compare_with_golden(path, text, update=update, explain=explain)

    return check

"""What every test shares: one thread per worker, a cache of the run's own, and the goldens."""

import os
import shutil
import tempfile
from collections.abc import Callable

import pytest
from golden_text import GOLDENS, compare_with_golden

# Workers with a pool of threads each would fight over the cores. Must precede torch's import.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


CACHE = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Prepared corpora are shared by the workers, who inherit this, and not with the user."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.stash[CACHE] = os.environ["FIDGPT_CACHE"] = tempfile.mkdtemp(prefix="fidgpt-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leaves nothing behind."""
    if CACHE in config.stash:
        shutil.rmtree(config.stash[CACHE], ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that accepts new texts."""
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="write what the tests see to tests/goldens instead of comparing with it",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` fails, with a diff, unless tests/goldens/NAME.txt holds `text`."""
    update = bool(request.config.getoption("--update-goldens"))

    def check(name: str, text: str) -> None:
        compare_with_golden(GOLDENS / f"{name}.txt", text, update=update)

    return check

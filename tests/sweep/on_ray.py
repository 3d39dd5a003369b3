"""A Ray of this machine alone, for the tests of a module."""

import logging
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def ray_here() -> Iterator[None]:
    """Ray with two cores, as a search would start it, for all tests of a module."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        before = signal.getsignal(signal.SIGTERM)
        ray.init(
            "local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 * 1024 * 1024,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)

"""Mistakes and strange files: each answered in a few lines, soon, and with what to do instead."""

import math
from dataclasses import replace

import pytest
from run_facts import FACTS

from fidgpt.cli import train
from fidgpt.plan import Memory, Plan
from fidgpt.train import RunError, device

from .conftest import Command

DEBUG = "--config=config:debug"


def test_a_batch_that_cannot_fit_is_warned_of(command: Command) -> None:
    done = command(train.main, DEBUG, "--config=set:batch_size=1000000000", "--dry_run")
    assert done.status == 0 and ". Compute fewer sequences at once, which leaves" in done.err


def test_a_run_that_cannot_fit_does_not_begin() -> None:
    def plan(peak: float, there: float) -> Plan:
        cluster = replace(FACTS.cluster, device=replace(FACTS.cluster.device, memory=there))
        return replace(FACTS.plan, memory=(Memory(weights=peak),), cluster=cluster)

    device.require_memory(plan(1e9, 1e9))
    device.require_memory(plan(1e9, math.inf))
    with pytest.raises(RunError, match="needs 2.0 GB per device, which has 1.0"):
        device.require_memory(plan(2e9, 1e9))


@pytest.mark.parametrize(
    "error",
    [
        OSError(12, "Cannot allocate memory"),
        ImportError("libx.so: failed to map segment from shared object"),
    ],
)
def test_a_memory_limit_is_a_lack_of_memory(error: Exception) -> None:
    with pytest.raises(RunError, match="there is not enough memory"), device.within_memory():
        raise error

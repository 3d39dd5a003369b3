"""The memory that code really takes on the CPU, as torch's profiler records it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch.profiler import ProfilerActivity, profile


class Memory(NamedTuple):
    """Bytes of tensors that code made.

    Attributes:
      left: how many exist after it.
      peak: how many existed at most.
    """

    left: int
    peak: int


def memory_of(code: Callable[[], object], folder: Path) -> Memory:
    """Runs code and adds up what is allocated and freed while it does; its result still exists."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = code()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    assert events
    now = peak = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        now += event["args"]["Bytes"]
        peak = max(peak, now)
    del result
    return Memory(now, peak)

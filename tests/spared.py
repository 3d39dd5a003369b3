"""What commands start other Pythons for, done here, where torch is imported already.

Each function is the `first` of a `forked.Python`.
"""

import json
from collections.abc import Sequence

import torch

from fidgpt.compose import index


def build_indexes() -> None:
    """Lets this process build the indexes that it reads."""
    from fidgpt.compose.index_build import build_index, write

    def build(directive: str, allowed: Sequence[str] = ()) -> index.Index:
        built, path = build_index([directive], allowed), index.index_path(directive, allowed)
        if path is not None:
            write(path, built)
        return json.loads(json.dumps(built))

    index.build = build


def fork_points(*, pause: float | None = None) -> None:
    """Lets a sweep of this process fork its points, for which it computes in one thread.

    Args:
      pause: seconds between two looks at them; that of the runner by default.
    """
    from faults.processes import ForkedPoint  # late: with the flags of commands

    from fidgpt import forking
    from fidgpt.sweep.runners import jobs

    torch.set_num_threads(1)
    jobs.Popen, forking.is_safe = ForkedPoint, lambda: False
    if pause is not None:
        jobs.LocalRunner.pause = pause

"""The processes that save one checkpoint together, and what they tell each other."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from fidgpt.parallel import ParallelError

_MEETING = timedelta(minutes=1)  # all are at this step, and have only to connect
_PATIENCE = timedelta(hours=2)  # a file system may take that long for a share of a large model


class Peers:
    """This process and those that it saves with; one process alone needs no group.

    They speak in a group of their own over gloo, so that a writing can end while the steps that
    follow use the group of the run. Making one is a call that all of them make at the same time.
    """

    def __init__(self) -> None:
        self.world = _world()
        self.rank, self.size, self._group = 0, 1, None
        if self.world is not None and dist.get_world_size() > 1:
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self._group = _meet()

    @property
    def is_main(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def current(self) -> "Peers":
        """These, or new ones where the processes joined or parted since."""
        return self if _world() is self.world else Peers()

    def all(self, value: Any) -> list[Any]:
        """The value of each process, on each of them."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def together(self, action: Callable[[], Any]) -> list[Any]:
        """Does something on every process; returns what each of them made, on each of them.

        Raises:
            ParallelError: it failed on others alone; where it failed, the error itself is raised.
        """
        result, error = None, None
        try:
            result = action()
        except Exception as caught:
            error = caught
        outcomes = self.all((result, None if error is None else str(error)))
        if error is not None:
            raise error
        failed = [rank for rank, (_, message) in enumerate(outcomes) if message is not None]
        if failed:
            raise ParallelError(f"process {failed[0]} failed: {outcomes[failed[0]][1]}")
        return [result for result, _ in outcomes]

    def on_main(self, action: Callable[[], Any]) -> Any:
        """Does something on the main process; returns on all of them what it made.

        Raises:
            ParallelError: on the others where it failed on the main one.
        """
        return self.together(lambda: action() if self.is_main else None)[0]


def _world() -> dist.ProcessGroup | None:
    """The group of the run; None where this process has joined no other."""
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def _meet() -> dist.ProcessGroup:
    """The group of all processes over gloo.

    One that dies while they connect is found out by the time alone, so they get little of it, and
    begin at the same moment: what they wait for before is in the run's own group, which knows.

    Raises:
        RuntimeError: one of them died here; `DataParallel` tells it as such.
    """
    dist.barrier()
    group = dist.new_group(backend="gloo", timeout=_MEETING)
    assert isinstance(group, dist.ProcessGroup)  # every process is in it
    _set_pg_timeout(_PATIENCE, group)
    return group

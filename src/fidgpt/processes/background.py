"""The processes of a run in a group of their own, for what they do beside its steps."""

import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from fidgpt.processes import heartbeat
from fidgpt.processes.processes import Processes
from fidgpt.processes.rendezvous import Timeouts


class BackgroundProcesses:
    """The processes of a run, with a gloo group that no step uses.

    So a save in the background can finish while later steps use the group of the run.
    """

    def __init__(self) -> None:
        self._world: dist.ProcessGroup | None = None
        self._processes = Processes()

    def current(self) -> Processes:
        """Return the processes of the run that this one takes part in now.

        If that has changed, all processes of the run call this at the same time.
        """
        world = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
        if world is not self._world:
            self._world, self._processes = world, _connected()
        return self._processes


def _connected() -> Processes:
    """Return all processes in a new group.

    A process that dies while they connect is only noticed by a timeout, which is short; they wait
    for each other before in the run's own group, which notices at once.

    Raises:
      RuntimeError: one of them died here; `DataParallel` reports it.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Processes()
    here = heartbeat.live()
    timeouts = here.timeouts if here is not None else Timeouts()
    dist.barrier()
    group = dist.new_group(backend="gloo", timeout=timeouts.connecting)
    assert isinstance(group, dist.ProcessGroup)  # every process is in it
    _set_pg_timeout(timeouts.collective, group)
    gate = None if here is None else here.gate()
    return Processes(dist.get_world_size(), dist.get_rank(), group, gate=gate)

"""How the processes of a run find each other, after a restart too."""

import os
import time
import uuid

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

_PAUSE_SECONDS = 0.02
_PATIENCE_SECONDS = 600.0


def join_processes() -> None:
    """Makes the process group of what `torchrun` started, or started again.

    Since torch 2.5, `torchrun --max-restarts` keeps one store for all starts of a group, in which
    new processes find the addresses of dead ones and connect to nobody. So where a restart may
    have been, the group is made under a name of its own in the store. How often a process was
    started does not serve as that name: each machine counts for itself.

    Raises:
      ValueError: the environment does not say who there is.
      RuntimeError: the others do not come.
    """
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) < 1:
        dist.init_process_group()
        return
    store, rank, world_size = next(iter(rendezvous("env://")))
    name = _agree_on_name(store, rank=rank, world_size=world_size)
    dist.init_process_group(store=PrefixStore(name, store), rank=rank, world_size=world_size)


def _agree_on_name(store: Store, *, rank: int, world_size: int) -> str:
    """A text that all processes of this start hold, and none of an earlier one."""
    own = uuid.uuid4().hex
    if rank == 0:
        _invite(store, own, world_size=world_size)
        return own
    store.set(f"guest/{rank}", own)
    name = store.get(f"invitation/{own}").decode()  # waits for it
    store.set(f"arrived/{name}/{rank}", "")
    return name


def _invite(store: Store, name: str, *, world_size: int) -> None:
    """Answers every guest that asks, those long dead among them, until all living ones are here."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    missing = set(range(1, world_size))
    while missing:
        for rank in sorted(missing):
            if store.check([f"arrived/{name}/{rank}"]):
                missing.discard(rank)
            elif store.check([f"guest/{rank}"]):
                store.set(f"invitation/{store.get(f'guest/{rank}').decode()}", name)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {sorted(missing)} of {world_size} did not come")
        time.sleep(_PAUSE_SECONDS)

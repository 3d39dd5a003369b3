"""The memory of a process: what it had at most, what it holds on to, and that it is too little."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fidgpt.train.run import RunError

# Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_TRAIN_WITH_LESS = (
    "Let fewer sequences be computed at once, which leaves the batch as it is "
    "(fiddler:set_micro_batch_size), keep less of each (fiddler:use_recompute), or choose "
    "smaller sizes; --print=summary counts what each needs."
)


def keep_freed_memory() -> None:
    """Lets malloc keep what is freed for the next request; elsewhere than on glibc, does nothing.

    glibc hands every large tensor back to the kernel when it is freed, and gets it back one
    zeroed page at a time a moment later. Training frees and wants the same tensors at every step:
    measured, 50,000 to 200,000 page faults and 12 to 20% of the time. The process then stays as
    large as it was at its largest, which for training is its size anyway.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)


def peak_memory(device: torch.device) -> int:
    """Bytes that this process had at most: of the accelerator's memory, or of the machine's."""
    if device.type == "cpu":
        import resource  # late: not every system has it, and an accelerator needs it not

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return torch.accelerator.max_memory_allocated(device)


@contextmanager
def within_memory(*, remedy: str = _TRAIN_WITH_LESS) -> Iterator[None]:
    """Tells what to do where the memory of a device does not suffice.

    Args:
      remedy: what is told; that of training unless said.

    Raises:
      RunError: it does not.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_lack(error):
            raise
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"there is not enough memory: {line:.200}\n{remedy}") from error


def _is_lack(error: Exception) -> bool:
    """Whether it says so; on CPUs torch has no class for it."""
    is_known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return is_known or "can't allocate memory" in str(error)

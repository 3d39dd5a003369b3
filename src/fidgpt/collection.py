"""Pausing Python's garbage collection while many lasting objects are made."""

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused(*, stays: bool = False) -> Iterator[None]:
    """Disable garbage collection inside the context, or in a decorated function.

    A graph of ten thousand nodes is a few hundred thousand objects; collecting again and again
    while they are made can take as long as the work itself.

    Args:
      stays: freeze all objects at the end, so that they are never collected: for imported modules,
        whose first collection takes a tenth of a second. Takes effect once per process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if stays:
            _freeze()
        if was_enabled:
            gc.enable()


_freeze = functools.cache(gc.freeze)  # once; Python counts frozen objects one by one

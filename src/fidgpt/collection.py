"""Python's search for garbage, put off while much is made that stays."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused(*, stays: bool = False) -> Iterator[None]:
    """Looks for no garbage inside, or in a function that it decorates.

    A graph of ten thousand parts is a few hundred thousand objects, none of them garbage while a
    function works on it; looking through them again and again takes up to as long as the work.

    Args:
      stays: whether what is there at the end stays until the process ends, and is never to be
        looked through: modules, above all, of which the first look takes a tenth of a second. Once
        in a process; what comes later may be garbage at the end of something else.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if stays and not gc.get_freeze_count():
            gc.freeze()
        if was_enabled:
            gc.enable()

"""Python's search for garbage, put off while much is made that stays."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Looks for no garbage inside, or in a function that it decorates.

    A graph of ten thousand parts is a few hundred thousand objects, none of them garbage while a
    function works on it; looking through them again and again takes up to as long as the work.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

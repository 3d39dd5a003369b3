"""Attributes that have other values for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def changed(holder: Any, **values: Any) -> Iterator[None]:
    """Context in which attributes of an object, a class or a module have these values."""
    before = {name: getattr(holder, name) for name in values}
    try:
        for name, value in values.items():
            setattr(holder, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)

"""An extra that the tests need not have: whatever it is asked for is of any type."""

from typing import Any

def __getattr__(name: str) -> Any: ...

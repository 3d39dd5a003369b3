"""Numbers and texts of a graph, said as they are or computed by a part."""

from typing import Any

import fiddle as fdl

from fidgpt.graph.signatures.annotations import hints_of, members_of

_PLAIN = (int, float, bool, str)


def is_quantity(part: Any) -> bool:
    """Whether a part computes a number or a text, of which a copy is as good."""
    if not isinstance(part, fdl.Config):
        return False
    returns = hints_of(fdl.get_callable(part)).get("return")
    return all(member in _PLAIN for member in members_of(returns))


def computed(value: Any) -> Any:
    """A value of a bound graph as its constructor gets it; of a quantity, the number itself.

    `fdl.NO_VALUE` for what is not known before the graph is built: a part, or a quantity whose
    computation fails, which is somebody else's to report.
    """
    if not isinstance(value, fdl.Buildable):
        return value
    if not is_quantity(value):
        return fdl.NO_VALUE
    try:
        return fdl.build(value)
    except Exception:  # whatever the function does with wrong arguments
        return fdl.NO_VALUE

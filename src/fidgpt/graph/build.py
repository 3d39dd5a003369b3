"""From a graph to the objects it describes."""

import re
from collections.abc import Iterable
from typing import Any

import fiddle as fdl

from fidgpt.graph.check import checked
from fidgpt.graph.constraints import Constraint
from fidgpt.graph.errors import ConfigError

_PLACE = re.compile(r"failed to construct or call (\S+) at <root>\.?(\S*) with")


def build(root: Any, *, constraints: Iterable[Constraint] = ()) -> Any:
    """Checks, binds and builds a graph; every node once, bottom-up.

    Args:
      root: the graph.
      constraints: what must hold in the whole bound graph; see `checked`.

    Raises:
      ConfigError: the graph is wrong, or a constructor refused its arguments, with an error of
        any kind; the message names the part.
    """
    bound = checked(root, constraints=constraints)
    try:
        return fdl.build(bound)
    except Exception as error:  # a division by head_dim=0 is the user's mistake too
        cause = getattr(error, "proxy_base_exception", error)
        place = _PLACE.search(getattr(error, "proxy_message", ""))
        where = f"{place[2] or 'the root'} ({place[1]}): " if place else ""
        kind = "" if isinstance(cause, ValueError | TypeError) else f"{type(cause).__name__}: "
        raise ConfigError(f"{where}{kind}{cause}") from cause

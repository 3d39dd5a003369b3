"""Configs that draw themselves where they are the last line of a notebook cell."""

import sys
from typing import Any

import fiddle as fdl

_DEPTH = 3


def show_configs() -> bool:
    """Lets notebooks draw every graph that they show; elsewhere than in one, does nothing.

    Returns whether there is a notebook.
    """
    shell = sys.modules.get("IPython")
    running: Any = shell.get_ipython() if shell else None
    if running is None or not hasattr(running, "display_formatter"):
        return False
    formatter = running.display_formatter.formatters["image/svg+xml"]
    formatter.for_type(fdl.Buildable, picture)
    return True


def picture(root: Any) -> str | None:
    """The graph as SVG; None, so that it is shown as text, where it cannot be drawn."""
    from fidgpt.graph.drawing import draw  # late: only notebooks draw
    from fidgpt.graph.errors import ConfigError

    try:
        return draw(root, depth=_DEPTH).svg()
    except (ConfigError, RuntimeError):  # half-made, or there is no program that draws
        return None

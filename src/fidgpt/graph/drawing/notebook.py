"""A config shows itself where it is the last line of a notebook's cell: drawn, to a depth."""

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
    from fidgpt.graph.drawing.draw import draw  # late: only who looks waits for it
    from fidgpt.graph.errors import ConfigError

    try:
        return draw(root, depth=_DEPTH).svg()
    except (ConfigError, RuntimeError):  # half-made, or there is no program that draws
        return None

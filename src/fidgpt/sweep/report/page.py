"""The page of a report: one file with its data, its style, its scripts and Plotly inside."""

import base64
import hashlib
import html
import json
from importlib import resources
from typing import Any

# In the order in which they use each other.
_SCRIPTS = (
    "data",
    "dom",
    "chosen",
    "plots",
    "curves",
    "axes",
    "importance",
    "map",
    "parallel",
    "points",
    "difference",
    "main",
)


def page(document: dict[str, Any]) -> str:
    """A report as an HTML page that needs nothing but itself, to be opened from a file.

    Args:
      document: all that it shows, as `document` makes it.
    """
    from plotly.offline import get_plotlyjs  # late: an extra

    library = get_plotlyjs()
    script = "\n".join(["'use strict';", *(_read(f"{name}.js") for name in _SCRIPTS)])
    data = json.dumps(document, separators=(",", ":"), allow_nan=False)
    parts = {
        "title": html.escape(document["title"]),
        "policy": _policy(library, script),
        "style": _read("style.css"),
        "data": data.replace("<", "\\u003c"),  # no text in a config may end the script
        "library": library,
        "script": script,
    }
    pieces = _read("page.html").split("%%")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _policy(*scripts: str) -> str:
    """Nothing from outside, and no script but these: whatever a sweep holds, it cannot run.

    Plotly writes styles of its own, draws pictures, and makes functions for the graphics card.
    """
    sources = " ".join(map(_digest, scripts))
    return (
        "default-src 'none'; form-action 'none'; base-uri 'none'; style-src 'unsafe-inline'; "
        f"img-src data: blob:; script-src 'unsafe-eval' {sources}"
    )


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _read(name: str) -> str:
    return resources.files("fidgpt.sweep.report").joinpath(name).read_text(encoding="utf-8")

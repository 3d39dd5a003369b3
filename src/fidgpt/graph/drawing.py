"""Drawings of graphs."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt import errors
from fidgpt.graph import binding, outlines, paths

_NOTEBOOK_DEPTH = 3


class Drawing:
    """A picture of a graph in Graphviz's language, and the same in words.

    A notebook shows the picture if `dot` or `graphviz-pure` is installed, and the words otherwise.

    Attributes:
      source: the picture in Graphviz's language.
      text: its content, as text.
    """

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def svg(self) -> str:
        """Return the picture as SVG.

        Raises:
          RuntimeError: there is no program that draws, or none succeeded.
        """
        return self._render("svg").decode()

    def save(self, path: str | Path) -> Path:
        """Write the picture in the format of the path's suffix: .svg, .png, or .dot as it is.

        Raises:
          RuntimeError: there is no program that draws, or none succeeded.
        """
        path = Path(path)
        suffix = path.suffix.removeprefix(".").lower()
        is_source = suffix in ("dot", "gv")
        path.write_bytes(self.source.encode() if is_source else self._render(suffix))
        return path

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return what a notebook shows: the richest that it can of these."""
        try:
            return {"image/svg+xml": self.svg(), "text/plain": self.text}
        except RuntimeError:
            return {"text/plain": self.text}

    def _render(self, suffix: str) -> bytes:
        problem = "There is neither dot nor graphviz-pure."
        beside = sysconfig.get_path("scripts")  # where pip installs the port of Graphviz
        programs = [shutil.which("dot"), shutil.which("graphviz-pure", path=beside)]
        for program in filter(None, [*programs, shutil.which("graphviz-pure")]):
            command, content = [program, f"-T{suffix}"], self.source.encode()
            done = subprocess.run(command, input=content, capture_output=True)
            if done.stdout and not done.returncode:
                return done.stdout
            problem = f"{program}: {done.stderr.decode(errors='replace').strip()[:300]}"
        raise RuntimeError(
            f"The graph could not be drawn as {suffix or 'a file'}. {problem}\n  Install Graphviz "
            "(Debian, Ubuntu: apt install graphviz) or run: pip install graphviz-pure"
        )


def show_configs() -> bool:
    """Let notebooks draw every graph that they show; return whether there is a notebook."""
    shell = sys.modules.get("IPython")
    running: Any = shell.get_ipython() if shell else None
    if running is None or not hasattr(running, "display_formatter"):
        return False
    running.display_formatter.formatters["image/svg+xml"].for_type(fdl.Buildable, svg_of)
    return True


def svg_of(root: Any) -> str | None:
    """Return a graph as SVG; None, so that it is shown as text, where it cannot be drawn."""
    try:
        return draw(root, depth=_NOTEBOOK_DEPTH).svg()
    except (errors.ConfigError, RuntimeError):  # incomplete, or there is no program that draws
        return None


def draw(root: Any, *, at: str = "", depth: int | None = None) -> Drawing:
    """Draw a graph as it is once it is bound, as Fiddle does.

    Each node is one box, however many places hold it. Dashed boxes are factories, called for each
    use. The graph is not changed.

    Args:
      root: the graph.
      at: the path of a node, to draw that alone: "model".
      depth: how many steps away from there nodes are boxes; None for all of them.

    Raises:
      ConfigErrors: the graph cannot be bound.
      ConfigError: there is no node at `at`.
    """
    import fiddle.graphviz  # late: not everyone draws

    bound = binding.Resolved.of(root).bound
    start = paths.find_parameter(bound, at).value if at else bound
    if not isinstance(start, fdl.Buildable):
        raise errors.ConfigError(f"{at or 'the root'} is not a component to draw.")
    source = fiddle.graphviz.render(start, max_depth=depth).source
    # XML has no control characters, not even escaped.
    printable = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in source)
    return Drawing(printable, outlines.outline(root))

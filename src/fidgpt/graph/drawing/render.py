"""Drawings as files and in notebooks, by whichever program there is that can lay out a graph."""

import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PATIENCE = 60  # seconds
_SOURCES = ("dot", "gv")
_REMEDY = (
    "Install Graphviz (Debian, Ubuntu: apt install graphviz) or run: pip install graphviz-pure"
)


class Drawing:
    """A picture of a graph in Graphviz's language, and the same in words.

    A notebook shows the picture if `dot` or `graphviz-pure` is installed, and the words otherwise.

    Attributes:
      source: the picture in Graphviz's language.
      text: what it says, as text.
    """

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def svg(self) -> str:
        """The picture as SVG.

        Raises:
          RuntimeError: there is no program that could draw it, or none succeeded.
        """
        return self._render("svg").decode()

    def save(self, path: str | Path) -> Path:
        """Writes the picture in the format of the path's suffix: .svg, .png, or .dot as it is.

        Raises:
          RuntimeError: there is no program that could draw it, or none succeeded.
        """
        path = Path(path)
        suffix = path.suffix.removeprefix(".").lower()
        path.write_bytes(self.source.encode() if suffix in _SOURCES else self._render(suffix))
        return path

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows: the richest that it can of these."""
        try:
            return {"image/svg+xml": self.svg(), "text/plain": self.text}
        except RuntimeError:
            return {"text/plain": self.text}

    def _render(self, suffix: str) -> bytes:
        complaint = "There is neither dot nor graphviz-pure."
        for program in _programs():
            try:
                done = subprocess.run(
                    [program, f"-T{suffix}"],
                    input=self.source.encode(),
                    capture_output=True,
                    timeout=_PATIENCE,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                complaint = f"{error}"
                continue
            if done.returncode == 0 and done.stdout:
                return done.stdout
            complaint = f"{program}: {done.stderr.decode(errors='replace').strip()[:300]}"
        raise RuntimeError(
            f"The graph could not be drawn as {suffix or 'a file'}. {complaint}\n  {_REMEDY}"
        )


def _programs() -> Iterator[str]:
    """Graphviz itself, and the port of it that pip installs beside Python."""
    beside = sysconfig.get_path("scripts")
    found = [shutil.which("dot"), shutil.which("graphviz-pure", path=beside)]
    yield from (program for program in [*found, shutil.which("graphviz-pure")] if program)

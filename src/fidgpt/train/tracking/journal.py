"""How far a tracker was told of a run, and under which name: a small file in the run directory."""

import json
import os
import threading
import uuid
from pathlib import Path

from fidgpt.drafts import sync


class Journal:
    """Lets a run that goes on continue what a tracker has, and tell it nothing twice.

    Attributes:
      id: what the tracker knows the run by.
      step: the last step that the tracker was told.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.id, self.step = str(kept["id"]), int(kept["step"])
        except (OSError, ValueError, KeyError, TypeError):  # none yet, or one that a crash cut
            self.id, self.step = _new_id(), 0

    def begin_anew(self, *, step: int) -> None:
        """What comes after `step` belongs to another run of the tracker's."""
        self.write(step=step, identity=_new_id())

    def write(self, *, step: int, identity: str | None = None) -> None:
        """Keeps the step, and the id where the tracker gives its own; whole or not at all."""
        with self._writing:  # a run that goes back writes, too, not only the tracker's thread
            self.id, self.step = identity or self.id, step
            temporary = self._path.with_suffix(".tmp")
            self._path.parent.mkdir(exist_ok=True)
            kept = {"id": self.id, "step": step}
            temporary.write_text(json.dumps(kept) + "\n", encoding="utf-8")
            sync(temporary)  # else a loss of power leaves it empty: another run for the tracker
            os.replace(temporary, self._path)


def _new_id() -> str:
    return uuid.uuid4().hex[:12]

"""A run's directory, and how a run ends."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class RunError(ValueError):
    """A run cannot begin or go on; the message says why and what to do."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
      path: its directory.
      step: optimizer steps done.
      stopped_by: the signal that ended it early, or None.
    """

    path: Path
    step: int
    stopped_by: signal.Signals | None


class RunDirectory:
    """The one folder that holds all of a run, and the texts that are written as it begins.

    Args:
      path: the folder; made by `create`, not before.
      texts: contents of files by name, such as the config and the command.
      changes: what differs from the config that the run went by so far, where it goes on with
        another one: a row of plain values for each difference.
      identity: what every process of the run must have alike: a text for each value, by name.
    """

    def __init__(
        self,
        path: Path,
        *,
        texts: Mapping[str, str],
        changes: Sequence[Mapping[str, str]] = (),
        identity: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.texts = texts
        self.changes = changes
        self.identity = identity or {}

    def create(self) -> None:
        """Makes the folder and writes the texts.

        Raises:
          RunError: something is there already, or it cannot be written.
        """
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise RunError(
                f"{self.path} exists already: name another run directory, or go on with "
                f"--resume={self.path}."
            ) from None
        except OSError as error:
            raise RunError(
                f"the run directory {self.path} cannot be made ({error.strerror}): "
                "name another one with --run_dir."
            ) from error
        for name, text in self.texts.items():
            self.write(name, text)

    def go_on(self, *, step: int) -> None:
        """Where the config changed, writes the texts anew and the changes into `changes.jsonl`.

        The texts that held until now stay beside them, as `config.until_step_100.json`.

        Args:
          step: the last one that went by the old config.

        Raises:
          RunError: the disk is full or the directory cannot be written.
        """
        if not self.changes:
            return
        for name, text in self.texts.items():
            old = self.path / name
            kept = old.with_name(f"{old.stem}.until_step_{step}{old.suffix}")
            if old.exists() and not kept.exists():
                self.write(kept.name, old.read_text(encoding="utf-8"))
            self.write(name, text)
        journal = self.path / "changes.jsonl"
        told = journal.read_text(encoding="utf-8") if journal.exists() else ""
        rows = [json.dumps({"after_step": step, **change}) + "\n" for change in self.changes]
        self.write(journal.name, told + "".join(rows))

    def write(self, name: str, text: str) -> None:
        """Writes one file whole or not at all.

        Raises:
          RunError: the disk is full or the directory cannot be written.
        """
        target, temporary = self.path / name, self.path / f".{name}.tmp"
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise RunError(f"{target} cannot be written: {error.strerror}.") from error

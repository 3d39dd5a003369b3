"""Weights & Biases: to its server, or offline into the run directory."""

import logging
import os
import shlex
from collections.abc import Sequence
from typing import Any, Literal

from fidgpt.train.tracking.aside import PATIENCE, PERIOD, Aside
from fidgpt.train.tracking.described import Described, numbers, texts
from fidgpt.train.tracking.journal import Journal
from fidgpt.train.tracking.trackers import Row


class WandB(Aside):
    """A run of Weights & Biases, its files in `wandb/` of the run directory.

    Args:
      project: where the run is listed.
      entity: the team or user that owns the project; your own unless said.
      mode: `online`, `offline`, or None for what WANDB_MODE says, and offline where no account is
        known on this machine; `wandb sync` uploads what was written offline.
    """

    title = "Weights & Biases"
    extra = "wandb"
    packages = ("wandb",)

    def __init__(
        self,
        *,
        project: str,
        entity: str | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        super().__init__(destination=f"{entity}/{project}")
        self._project = project
        self._entity = entity
        self._mode: Literal["online", "offline"] | None = mode
        self._run: Any = None

    def open(self, run: Described, journal: Journal) -> str:
        import wandb  # pyright: ignore[reportMissingImports]

        logging.raiseExceptions = False  # its own log, on a full disk, would print stacks
        mode = self._mode or _usual_mode()
        self._run = wandb.init(
            project=self._project,
            entity=self._entity,
            mode=mode,
            dir=run.path,
            id=journal.id,
            name=run.name,
            group=run.group,
            config=dict(run.config),
            resume="allow",
            allow_val_change=True,
            settings=_quiet(),
        )
        if self._run.offline:
            folder = shlex.quote(str(run.path / "wandb"))
            return f"offline; later: wandb sync {folder}/offline-run-*"
        return str(self._run.url)

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            # Whole at once: else wandb keeps it until the next one comes, or a kill.
            self._run.log({**numbers(row), **texts(row)}, step=row["step"], commit=True)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()


def _usual_mode() -> Literal["offline"] | None:
    """None where wandb can decide, offline where it would ask on the terminal for an account."""
    import wandb  # pyright: ignore[reportMissingImports]

    if os.environ.get("WANDB_MODE"):
        return None
    return None if wandb.login(prompt=False, verify=False) else "offline"


def _quiet() -> Any:
    from wandb import Settings  # pyright: ignore[reportMissingImports]

    # The console is the run's own; machine, commit and diff are in the run directory.
    settings = Settings(silent=True, console="off", disable_git=True, finish_timeout=PATIENCE)
    # Rows wait 15 s for the disk otherwise, and go with a kill. Older ones do not have it.
    if hasattr(settings, "x_transaction_log_flush_interval"):
        settings.x_transaction_log_flush_interval = PERIOD
    return settings

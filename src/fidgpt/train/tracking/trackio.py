"""Trackio: a SQLite file on this machine, or a server or Space that it knows."""

from collections.abc import Sequence
from typing import Any

from fidgpt.train.tracking.aside import Aside
from fidgpt.train.tracking.described import Described, numbers
from fidgpt.train.tracking.journal import Journal
from fidgpt.train.tracking.trackers import Row


class Trackio(Aside):
    """A run of a Trackio project, where TRACKIO_DIR says.

    Args:
      project: where the run is listed.
      space: the Space of Hugging Face's that shows it, `user/name`; this machine unless said.
    """

    title = "Trackio"
    extra = "trackio"
    packages = ("trackio",)

    def __init__(self, *, project: str = "fidgpt", space: str | None = None) -> None:
        super().__init__(destination=f"{space}/{project}")
        self._project = project
        self._space = space
        self._run: Any = None

    def open(self, run: Described, journal: Journal) -> str:
        import trackio  # pyright: ignore[reportMissingImports]

        self._run = trackio.init(
            self._project,
            name=f"{run.name}-{journal.id[:4]}",  # names are identities here
            group=run.group,
            space_id=self._space,
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return f"trackio show --project {self._project}"

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(numbers(row), step=row["step"])

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()

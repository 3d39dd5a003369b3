"""TensorBoard: event files in the run directory."""

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fidgpt.train.tracking.aside import Aside
from fidgpt.train.tracking.described import Described, numbers, texts
from fidgpt.train.tracking.journal import Journal
from fidgpt.train.tracking.trackers import Row

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

_EVENTS = "events.out.tfevents."  # then the seconds since 1970 at which a file begins
_EARLIER = "before-"  # sorts before all of them, and before what has it already


class TensorBoard(Aside):
    """Writes `tensorboard/` into the run directory; `tensorboard --logdir=runs` compares runs."""

    title = extra = "tensorboard"
    packages = ("tensorboard",)

    def __init__(self) -> None:
        super().__init__(destination="")
        self._writer: SummaryWriter | None = None

    def open(self, run: Described, journal: Journal) -> str:
        from torch.utils.tensorboard.writer import SummaryWriter  # late: an extra

        folder = run.path / "tensorboard"
        _stand_before_now(folder)
        # What stands there of later steps is not shown: a failed writing, or other settings.
        self._writer = SummaryWriter(str(folder), purge_step=journal.step + 1)
        self._writer.add_text("config", _table(run.config), global_step=journal.step + 1)
        return shlex.join(["tensorboard", f"--logdir={run.path.parent}"])

    def write(self, rows: Sequence[Row]) -> None:
        assert self._writer is not None
        for row in rows:
            for name, value in numbers(row).items():
                self._writer.add_scalar(name, value, global_step=row["step"])
            for name, text in texts(row).items():
                self._writer.add_text(name, _as_it_is(text), global_step=row["step"])
        self._writer.flush()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _stand_before_now(folder: Path) -> None:
    """Gives files of a clock that was ahead names before that of the next one.

    TensorBoard reads them by name, which holds the time: one read last hides steps that follow it.
    """
    names = sorted(path.name for path in folder.glob("*tfevents*"))
    if names and names[-1] >= f"{_EVENTS}{int(time.time()):010d}":
        for name in names:
            (folder / name).rename(folder / f"{_EARLIER}{name}")


def _as_it_is(text: str) -> str:
    """Markdown that shows a text with its spaces and line breaks."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def _table(config: Mapping[str, object]) -> str:
    rows = [f"| {name} | {str(value).replace('|', '&#124;')} |" for name, value in config.items()]
    return "\n".join(["| value | is |", "| --- | --- |", *rows])

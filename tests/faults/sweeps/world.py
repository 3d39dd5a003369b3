"""What all cases of sweeps share: a text, an undisturbed sweep and search, and a small disk."""

import ctypes
import os
import random
from pathlib import Path

from faults import small_disk
from faults.processes import ask_once, one_thread, warm_up
from faults.results import Wrong
from faults.sweeps.cases import Known, SweepCase
from faults.sweeps.kinds import NO_ROOM, SEARCH
from faults.sweeps.results import SweepResult, sweep_result
from faults.variants import variants, write_texts
from fidgpt.cli import sweep

STEPS, POINTS, TRIALS = 4, 20, 12
_SMALL_MB = 64
_SUBREAPER = 36


class SweepWorld:
    """Makes cases.

    Args:
      folder: empty; all lies in it.

    Attributes:
      has_small_disk: whether the machine lets one be mounted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._small = folder / "small"
        self._small.mkdir()
        self.has_small_disk = small_disk.mounted(self._small, megabytes=_SMALL_MB)
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # so that no point is out of sight
        one_thread()
        ask_once()
        write_texts(folder / "texts")
        os.environ["FIDGPT_CACHE"] = str(folder / "cache")
        point = [
            *variants(folder / "texts")["plain"],
            f"--config=set:num_steps={STEPS}",
            "--config=set:checkpoints.every=2",
        ]
        warm_up([*point, f"--run_dir={folder / 'warm'}"])
        swept = [
            *point,
            "--sweep=tag:LearningRate=log(1e-4,1e-2,5)",
            f"--repeat=seed:{POINTS // 5}",
        ]
        warm_up([*swept, "--print"], sweep.run)
        space = "--space=tag:LearningRate=log(1e-4,1e-1)"
        searched = [*point, space, "--objective=validation/loss"]
        self._commands = {
            "sweep": swept,
            **{name: [*searched, f"--search={name}:{TRIALS}"] for name in ("random", "tpe")},
        }
        self._known: dict[str, Known] = {}

    def case(self, kind: str, number: int, draw: random.Random) -> SweepCase:
        """The case of that number; a file system is shared, so one after the other."""
        folder = self._folder / f"case-{number}"
        # What failed for want of room has no value that TPE could learn from, as it would have had.
        search = "random" if kind.endswith(NO_ROOM) else draw.choice(["random", "tpe"])
        known = self.undisturbed(search if kind.startswith(SEARCH) else "sweep")
        small = self._small / f"{number}" / "sweep" if kind.endswith(NO_ROOM) else None
        if small is not None:
            small.parent.mkdir()
        return SweepCase(known, folder, draw, run=small)

    def undisturbed(self, name: str) -> Known:
        """What nobody disturbed: "sweep", or a search by the name of its sampler."""
        if name not in self._known:
            self._known[name] = self._run(name, POINTS if name == "sweep" else TRIALS)
        return self._known[name]

    def _run(self, name: str, num_points: int) -> Known:
        nothing = SweepResult([], [], {}, {}, [])
        known = Known(self._commands[name], nothing, num_points * STEPS, name == "sweep")
        case = SweepCase(known, self._folder / "undisturbed" / name, random.Random(0))
        case.end(case.start(), 0)
        result = sweep_result(case.run)
        if (num_steps := case.journal.num_steps()) != len(result.rows) * STEPS:
            raise Wrong(f"{len(result.rows)} points of {STEPS} steps made {num_steps} steps")
        if len(result.rows) != num_points:
            raise Wrong(f"{len(result.rows)} points instead of {num_points}")
        return known._replace(result=result)

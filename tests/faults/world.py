"""What all cases share: texts, undisturbed runs, and a small disk."""

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from faults import acts, small_disk
from faults.cases import Case, Counts, Variant
from faults.kinds import FUNCTIONS, GO_ON, RESTORE, STEP, TWO_PROCESSES
from faults.moments import Place, Survey
from faults.processes import AT_END, Process, ask_once, meet_soon, one_thread, warm_up
from faults.results import Wrong, refuse_difference, result_of
from faults.variants import variants, write_texts

_SMALL_MB = 16
_ON_SMALL_DISK = "no room on the disk"


class World:
    """Makes cases.

    Args:
      folder: empty; all lies in it.
      names: of the variants that are drawn from.

    Attributes:
      has_small_disk: whether the machine lets one be mounted.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._small = folder / "small"
        self._small.mkdir()
        self.has_small_disk = small_disk.mounted(self._small, megabytes=_SMALL_MB)
        one_thread()
        ask_once()
        meet_soon()
        write_texts(folder / "texts")
        os.environ["FIDGPT_CACHE"] = str(folder / "cache")
        known = variants(folder / "texts")
        warm_up([*known["plain"], f"--run_dir={folder / 'warm'}"])
        self.variants = {name: self._undisturbed(name, known[name]) for name in names}
        self._of_two = self._by_two(self.variants[names[0]])

    def case(self, kind: str, number: int, draw: random.Random) -> Case:
        """The case of that number; a file system is shared, so one after the other."""
        folder = self._folder / f"case-{number}"
        if kind in TWO_PROCESSES:
            return Case(self._of_two, folder, draw, num_processes=2)
        variant = self.variants[draw.choice(list(self.variants))]
        small = self._small / f"{number}" / "run" if kind == _ON_SMALL_DISK else None
        if small is not None:
            small.parent.mkdir()
        return Case(variant, folder, draw, run=small)

    def _undisturbed(self, name: str, arguments: list[str]) -> Variant:
        """Runs it alone, then counted, then counted as it goes on after a kill."""
        folder = self._folder / "undisturbed" / name.replace(" ", "-")
        folder.mkdir(parents=True)
        alone = [*arguments, f"--run_dir={folder / 'alone'}"]
        self._run(alone, folder, disturbed=None)
        result = result_of(folder / "alone")
        counted = _Counted(folder / "counted", folder / "counts.json")
        cold = {"FIDGPT_CACHE": str(folder / "cache")}
        self._run([*arguments, f"--run_dir={folder / 'counted'}"], folder, counted, cold)
        refuse_difference(result_of(folder / "counted"), result)
        counts = counted.counts()
        resumed = _Counted(folder / "killed", folder / "counts.json")
        begin = [*arguments, f"--run_dir={folder / 'killed'}"]
        place = Place(STEP, 5, "calls", 0)
        self._run(begin, folder, lambda: place.arm(acts.kill, folder), status=-9)
        self._run([f"--resume={folder / 'killed'}"], folder, resumed)
        refuse_difference(result_of(folder / "killed"), result)
        going_on = {function: resumed.counts()[function] for function in (RESTORE, GO_ON)}
        return Variant(arguments, result, {**counts, **going_on})

    def _by_two(self, variant: Variant) -> Variant:
        folder = self._folder / "undisturbed" / "two"
        case = Case(variant, folder, random.Random(0), num_processes=2)
        case.require(case.start(), 0)
        return variant._replace(result=result_of(case.run))

    def _run(
        self,
        arguments: Sequence[str],
        folder: Path,
        disturbed: Callable[[], None] | None = None,
        environment: dict[str, str] | None = None,
        *,
        status: int = 0,
    ) -> None:
        output = folder / "output"
        process = Process(arguments, output=output, disturbed=disturbed, environment=environment)
        if (ended := process.end()).status != status:
            raise Wrong(f"the undisturbed run ends with {ended.status}:\n{ended.output}")


class _Counted:
    """Surveys a process, whose counts are to be had once it has ended."""

    def __init__(self, run: Path, file: Path) -> None:
        self._run = run
        self._file = file

    def __call__(self) -> None:
        survey = Survey(FUNCTIONS, self._run.parent)
        AT_END.append(lambda: self._file.write_text(json.dumps(survey.counts)))

    def counts(self) -> Counts:
        return json.loads(self._file.read_text())

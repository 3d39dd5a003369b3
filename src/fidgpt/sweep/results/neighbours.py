"""Which sweeps have run in a directory, so that nobody compares two of them in silence."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fidgpt.cli.directives.spelling import DEFAULT_CONFIG
from fidgpt.drafts import write_whole
from fidgpt.sweep.points.axes import Item
from fidgpt.sweep.points.naming import axis_names

_FILE = "sweeps.jsonl"  # a row for each


@dataclass(frozen=True)
class Description:
    """What a sweep is about, whatever its values are, and however often it repeats them.

    Attributes:
      directives: those outside of the axes.
      axes: the names of what varies.
    """

    directives: Sequence[str]
    axes: Sequence[str]

    @property
    def text(self) -> str:
        """The same in words."""
        base = " ".join(self.directives) or f"config:{DEFAULT_CONFIG}"
        return f"{base} over {', '.join(self.axes) or 'nothing'}"

    def resembles(self, other: "Description") -> bool:
        """Whether one of them only varies more of the same config than the other."""
        mine, theirs = {*self.axes}, {*other.axes}
        return self.directives == other.directives and (mine <= theirs or theirs <= mine)


def described(items: Sequence[Item]) -> Description:
    """What directives and axes are about."""
    axes = [item for item in items if not isinstance(item, str) and not item.is_repeat]
    names = [name for axis in axes for name in axis_names(axis)]
    return Description([item for item in items if isinstance(item, str)], names)


def enter(directory: Path, sweep: Description) -> None:
    """Takes down in a directory that a sweep runs there; once."""
    there = _entered(directory)
    if sweep not in there:
        rows = (json.dumps(asdict(one), ensure_ascii=False) for one in (*there, sweep))
        write_whole(directory / _FILE, "".join(f"{row}\n" for row in rows))


def neighbours(directory: Path, sweep: Description) -> list[str]:
    """A line for each sweep in a directory whose points are no points of this one."""
    return [
        f"{directory} holds points of another sweep too, {one.text}: a report compares all of "
        "them. Name another --run_dir to keep them apart."
        for one in _entered(directory)
        if not one.resembles(sweep)
    ]


def strangers(directory: Path) -> list[str]:
    """What the sweeps in a directory are about, where not all of them were swept alike."""
    there = _entered(directory)
    is_alike = all(one.resembles(other) for one, other in itertools.combinations(there, 2))
    return [] if is_alike else [one.text for one in there]


def _entered(directory: Path) -> list[Description]:
    try:
        lines = (directory / _FILE).read_text(encoding="utf-8").splitlines()
        return [Description(row["directives"], row["axes"]) for row in map(json.loads, lines)]
    except (OSError, ValueError, KeyError, TypeError):  # what it warns of is no fault
        return []

"""The best points at each value of an axis: what one asks who looks for a rate at several sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

from fidgpt.sweep.report.columns import Column
from fidgpt.sweep.report.groups import Group, is_beyond_noise

_MOST = 12  # values of an axis, of which more are a search


@dataclass(frozen=True)
class Leader:
    """What won at one value of an axis.

    Attributes:
      text: the value.
      group: what won there.
      second: what came next there; None where nothing else is finished.
    """

    text: str
    group: Group
    second: Group | None

    @property
    def ahead(self) -> float | None:
        """How far what won is ahead of the next."""
        if self.second is None or self.second.mean is None or self.group.mean is None:
            return None
        return abs(self.second.mean - self.group.mean)

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether that is more than repeated runs explain; None: unknown."""
        return None if self.second is None else is_beyond_noise(self.group, self.second)

    def others(self, columns: Sequence[Column], label: str) -> str:
        """What won, by what it has on the other axes."""
        known = [one.label for one in columns if not one.is_repeat and one.label != label]
        values = self.group.values
        return " ".join(f"{one}={values[one]}" for one in known if one in values)


def leaders_of(ranking: Sequence[Group], columns: Sequence[Column]) -> dict[str, list[Leader]]:
    """What won at each value, by the label of the axis; of axes where there is something to win.

    Args:
      ranking: the groups of which a point is finished, the best first.
      columns: all axes.
    """
    choices = [column for column in columns if not column.is_repeat]
    if len(choices) < 2:
        return {}
    found = {column.label: _leaders(ranking, column) for column in choices}
    return {
        label: leaders
        for label, leaders in found.items()
        if 1 < len(leaders) <= _MOST
        and 2 * sum(one.second is not None for one in leaders) > len(leaders)
    }


def _leaders(ranking: Sequence[Group], column: Column) -> list[Leader]:
    at_value = {
        text: [group for group in ranking if group.values.get(column.label) == text]
        for text in column.texts
    }
    return [
        Leader(text, groups[0], groups[1] if len(groups) > 1 else None)
        for text, groups in at_value.items()
        if groups
    ]

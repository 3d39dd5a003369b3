"""A point of a sweep: directives on a base, and the fingerprint of the graph that they make."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fidgpt.sweep.points.dry_runs import Cost


@dataclass(frozen=True)
class Point:
    """One config of a sweep.

    Attributes:
      directives: all that makes the config, in order.
      varied: those that the axes chose.
      fingerprint: its identity; two points with one fingerprint are the same run.
      name: what varies, in short.
      values: what each axis chose, by the name of the axis.
      cost: what it asks of a machine.
    """

    directives: tuple[str, ...]
    varied: tuple[str, ...]
    fingerprint: str
    name: str
    cost: Cost
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """The first digits of the fingerprint, which name its run directory."""
        return self.fingerprint[:12]

"""The configs of all points as what they say at each path, so that any two can be compared."""

from collections import Counter
from collections.abc import Sequence

from fidgpt.graph import ConfigError, load
from fidgpt.graph.views.outline import rows
from fidgpt.sweep.report.records import Record

Said = dict[str, str]  # by path, in the order in which one reads a graph


def differing(records: Sequence[Record], *, allowed: Sequence[str] = ()) -> list[Said | None]:
    """What each config says where not all of them say the same, defaults among it.

    What is heard from another place is left out: it follows from what is said there.

    Args:
      records: the points; of one whose run has written no config that can be read, None is told.
      allowed: packages of the user's own that configs may name.
    """
    said = [_said(record, tuple(allowed)) for record in records]
    known = [one for one in said if one is not None]
    counts = Counter(item for one in known for item in one.items())
    common = {item for item, count in counts.items() if count == len(known)}
    return [
        None
        if one is None
        else {key: text for key, text in one.items() if (key, text) not in common}
        for one in said
    ]


def _said(record: Record, allowed: tuple[str, ...]) -> Said | None:
    path = record.directory / "config.json"
    try:
        cfg = load(path.read_text(encoding="utf-8"), source=str(path), allowed=allowed)
        return {
            row.path: row.text
            for row in rows(cfg, defaults=True)
            if row.path and row.text and row.kind != "heard"
        }
    except (ConfigError, OSError):
        return None

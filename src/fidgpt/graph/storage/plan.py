"""What a document's parts hold of each other, looked at before any of them is made."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.storage.codec import inner

DEEPEST = 100  # lists and dicts inside each other, which Python reads and writes by recursion
MOST_PARTS = 1_000_000
MOST_VALUES = 20_000_000

_NONE: list[tuple[Any, Any]] = [(None, None)]


class References:
    """The parts that a part's arguments name.

    Attributes:
      parts: the paths of those that it has for itself, as often as it has one.
      shared: the paths of those that it shares.
      num_values: how many values it has, inside of lists too.
    """

    def __init__(self, entry: Any) -> None:
        """Looks through an entry of a document.

        Raises:
          ConfigError: it is no entry.
        """
        self.parts: list[str] = []
        self.shared: list[str] = []
        self.num_values = 0
        arguments = entry.get("set", {}) if isinstance(entry, dict) else None
        if not isinstance(arguments, dict):
            raise ConfigError(
                "the file is damaged: a part is one of Config, Partial or ArgFactory, with what it "
                "has set by name."
            )
        todo = [(value, 0) for value in arguments.values()]
        while todo:
            value, depth = todo.pop()
            self.num_values += 1
            if depth > DEEPEST:
                raise ConfigError(f"lists and dicts lie more than {DEEPEST} deep in each other.")
            [(word, path)] = value.items() if isinstance(value, dict) and len(value) == 1 else _NONE
            if word in ("part", "shared") and isinstance(path, str):
                (self.parts if word == "part" else self.shared).append(path)
            else:
                todo += [(one, depth + 1) for one in inner(value)]


class Plan(NamedTuple):
    """How a graph is made from a document.

    Attributes:
      times: how often each part is made.
      owners: the parts of which each copy has shared parts of its own.
    """

    times: Mapping[str, int]
    owners: set[str]


def plan(entries: Mapping[str, dict[str, Any]]) -> Plan:
    """What is to be made, once all is known to fit together.

    Raises:
      ConfigError: a part is named that there is not, or holds itself, or is held by none, or is
        shared here and not there; or what is written once would be made too often.
    """
    references: dict[str, References] = {}
    for path, entry in entries.items():
        with at(path[:80] or "the root"):
            references[path] = References(entry)
            _check_names(references[path], entries)
            if "one_in" in entry and (entry["one_in"] not in entries or not path):
                raise ConfigError(f"there is no part {entry['one_in']!r:.80} for it to be one in.")
    order = _parents_first(references)
    if len(order) < len(entries):
        reached = set(order)
        lost = next(path for path in entries if path not in reached)
        raise ConfigError(f"no part holds {lost:.80}: delete it, or put it where it belongs.")
    owners = {entry["one_in"] for entry in entries.values() if "one_in" in entry}
    return Plan(_times(order, references, entries), owners)


def _check_names(named: References, entries: Mapping[str, dict[str, Any]]) -> None:
    for path in (*named.parts, *named.shared):
        if path not in entries:
            raise ConfigError(f"there is no part {path!r:.80}.")
    for path in named.parts:
        if "one_in" in entries[path]:
            raise ConfigError(f"{path:.80} is one in {entries[path]['one_in']!r:.80}: say shared.")
    for path in named.shared:
        if "one_in" not in entries[path]:
            raise ConfigError(f"{path:.80} is shared, and does not say in what it is one.")


def _parents_first(references: Mapping[str, References]) -> list[str]:
    left: list[str] = []
    inside: dict[str, bool] = {}  # whether what a part holds is still looked through
    ways: list[tuple[str, Iterator[str]]] = [("", _named(references[""]))]
    inside[""] = True
    while ways:
        path, others = ways[-1]
        child = next(others, None)
        if child is None:
            inside[path] = False
            left.append(path)
            ways.pop()
        elif inside.get(child):
            raise ConfigError(f"{child[:80] or 'the root'} contains itself, at {path:.80}.")
        elif child not in inside:
            inside[child] = True
            ways.append((child, _named(references[child])))
    return left[::-1]


def _named(references: References) -> Iterator[str]:
    yield from references.parts
    yield from references.shared


def _times(
    order: list[str], references: Mapping[str, References], entries: Mapping[str, dict[str, Any]]
) -> Mapping[str, int]:
    """How often each part is made; a short text that stands for a graph without end is refused."""
    times = dict.fromkeys(order, 0)
    times[""] = 1
    for path in order:
        if "one_in" in entries[path]:
            times[path] = times[entries[path]["one_in"]]
        for child in references[path].parts:
            times[child] += times[path]
    num_parts = sum(times.values())
    num_values = sum(times[path] * references[path].num_values for path in order)
    if num_parts > MOST_PARTS or num_values > MOST_VALUES:
        raise ConfigError(
            f"it stands for more than {MOST_PARTS:,} parts or {MOST_VALUES:,} values, which no "
            "run has: something is written that holds twice what holds twice."
        )
    return times

"""What a sweep leaves, to be compared with what an undisturbed one left."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from faults.results import Result, Wrong, refuse_difference, result_of
from faults.sweeps.children import DONE, Trained
from fidgpt.train.trackers.trackers import reproducible

Row = Mapping[str, Any]
_BY_CHANCE = ("attempts", "seconds", "code")


class SweepResult(NamedTuple):
    """What must be alike.

    Attributes:
      rows: of `table.jsonl`, without what a clock measured and how often was tried.
      sheet: of `results.csv`, likewise.
      done: the number of each point in its `done.json`.
      runs: what each point left.
      trials: of a search: what was chosen, and what came of it.
    """

    rows: Sequence[Row]
    sheet: Sequence[Row]
    done: Mapping[str, Row]
    runs: Mapping[str, Result]
    trials: Sequence[Any]


def sweep_result(directory: Path) -> SweepResult:
    """Reads a sweep that is done.

    Raises:
      Wrong: something in it is not whole.
    """
    rows = plain_rows(directory)
    names = [row["directory"] for row in rows]
    return SweepResult(
        rows,
        [_plain(row) for row in sheet_of(directory)],
        {name: reproducible(_json(directory / name / "done.json")) for name in names},
        {name: result_of(directory / name) for name in names},
        _trials(directory / "study.journal"),
    )


def plain_rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of `table.jsonl`, without what is left to chance.

    Raises:
      Wrong: one is not whole, or there twice.
    """
    rows = _table(directory / "table.jsonl")
    return [_plain(row) | {"metrics": reproducible(row["metrics"])} for row in rows]


def sheet_of(directory: Path) -> list[dict[str, str]]:
    """The rows of `results.csv`."""
    path = directory / "results.csv"
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        return list(csv.DictReader(file))


def refuse_other(found: SweepResult, expected: SweepResult) -> None:
    """Raises Wrong where two sweeps differ in anything, saying in what."""
    in_any_order = bool(expected.trials)  # of a search, rows come as it goes
    for file, rows, wanted in (
        ("table.jsonl", found.rows, expected.rows),
        ("results.csv", found.sheet, expected.sheet),
    ):
        if in_any_order:
            rows, wanted = (sorted(one, key=lambda row: row["name"]) for one in (rows, wanted))
        _refuse_other_rows(file, rows, wanted)
    for name, run in expected.runs.items():
        try:
            refuse_difference(found.runs[name], run)
        except Wrong as wrong:
            raise Wrong(f"{name}: {wrong}") from None
        if json.dumps(found.done[name]) != json.dumps(expected.done[name]):
            raise Wrong(f"{name}: done.json is {found.done[name]}, not {expected.done[name]}")
    for one, wanted in zip_longest(found.trials, expected.trials):
        if one != wanted:
            raise Wrong(f"a trial is {one} instead of {wanted}")


def refuse_second_training(lines: Iterable[Trained], *, lost: set[str]) -> None:
    """Raises Wrong where a point was trained after its end, or by two processes at a time.

    Args:
      lines: of the journal.
      lost: points that somebody removed, which must be trained again.
    """
    trained: dict[str, list[Trained]] = {}
    for line in lines:
        trained.setdefault(line.point, []).append(line)
    for point, own in trained.items():
        pids = [line.pid for line in own if line.what != DONE]
        changes = sum(one != other for one, other in pairwise(pids))
        if changes >= len(set(pids)):
            raise Wrong(f"{point} was trained by {len(set(pids))} processes at a time: {pids}")
        whats = [line.what for line in own]
        again = whats[whats.index(DONE) :] if DONE in whats else []
        if point not in lost and any(what != DONE for what in again):
            raise Wrong(f"{point} was trained again after its end: {whats}")


def _refuse_other_rows(file: str, found: Sequence[Row], expected: Sequence[Row]) -> None:
    names = [row["name"] for row in found]
    if names != (wanted := [row["name"] for row in expected]):
        raise Wrong(f"{file} has rows of {names} instead of {wanted}")
    for one, other in zip(found, expected, strict=True):
        keys = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
        if keys:
            told = "; ".join(f"{key} is {one.get(key)!r}, not {other.get(key)!r}" for key in keys)
            raise Wrong(f"{file}, {one['name']}: {told}")


def _plain(row: Row) -> dict[str, Any]:
    return {key: value for key, value in reproducible(dict(row)).items() if key not in _BY_CHANCE}


def _table(path: Path) -> list[dict[str, Any]]:
    rows = [
        _parsed(path, line)
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    ]
    fingerprints = [row["fingerprint"] for row in rows]
    if len(set(fingerprints)) < len(fingerprints):
        raise Wrong(f"{path} has two rows of a point: {fingerprints}")
    return rows


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise Wrong(f"{path} is not there")
    return _parsed(path, path.read_text(encoding="utf-8", errors="replace"))


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Wrong(f"{path} is not whole ({error}): {text[:200]!r}") from None


def _trials(path: Path) -> list[Any]:
    if not path.exists():
        return []
    storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.load_study(study_name="search", storage=storage)
    return [(one.number, one.state.name, one.params, one.values) for one in study.get_trials()]

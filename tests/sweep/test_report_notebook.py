"""A sweep in a notebook: its points with their states."""

import json
from pathlib import Path

from fidgpt.sweep import Sweep, axis


def test_a_sweep_shows_its_points_and_how_they_are_doing(tmp_path: Path) -> None:
    rates = axis("tag:LearningRate=1e-3,3e-3,1e-2")
    sweep = Sweep("config:debug", rates, directory=tmp_path / "sweep")
    shown = sweep._repr_html_()
    assert shown.count("waiting") == 3 and "0 of 3 done" in shown and "LearningRate=1e-3" in shown
    first, second, _ = sweep.points
    rows = [
        _row(first.fingerprint, "finished", 3.25, ""),
        _row(second.fingerprint, "diverged", 9.0, "loss is <nan>"),
    ]
    sweep.directory.mkdir()
    (sweep.directory / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = sweep._repr_html_()
    assert "finished" in shown and "3.2500" in shown
    assert "diverged" in shown and "loss is &lt;nan&gt;" in shown
    assert "1 of 3 done, 1 failed" in shown


def _row(fingerprint: str, status: str, loss: float, words: str) -> dict[str, object]:
    return {
        "name": fingerprint[:4],
        "fingerprint": fingerprint,
        "status": status,
        "directory": fingerprint[:12],
        "values": {},
        "directives": [],
        "num_steps": 7,
        "step": 7,
        "attempts": 1,
        "seconds": 1.0,
        "metrics": {"validation/loss": loss},
        "last_words": words,
    }

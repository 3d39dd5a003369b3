"""Curves of runs: what their metrics.jsonl hold, smoothed and drawn beside each other."""

from fidgpt.curves.drawing import Look, draw
from fidgpt.curves.files import save
from fidgpt.curves.recorded import Recorded, read_runs
from fidgpt.curves.series import AXES, Curve, chosen_metrics, curve_of

__all__ = [
    "AXES",
    "Curve",
    "Look",
    "Recorded",
    "chosen_metrics",
    "curve_of",
    "draw",
    "read_runs",
    "save",
]

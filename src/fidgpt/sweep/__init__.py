"""Sweeps: many configs as one set, composed, shown, run and read back.

sweep = Sweep("config:base", axis("tag:LearningRate=log(1e-4,1e-2,5)"), repeat("seed:3"))
sweep.run(jobs=2).best()
"""

from fidgpt.sweep.axes import Axis, Choice, ablation, axis, axis_values, pairs, repeat
from fidgpt.sweep.points import Plan, Point, plan
from fidgpt.sweep.results import Results, read_results
from fidgpt.sweep.runners.jobs import Ending, Events, Job, LocalRunner, Runner, jobs_of
from fidgpt.sweep.running import Sweep

__all__ = [
    "Axis",
    "Choice",
    "Ending",
    "Events",
    "Job",
    "LocalRunner",
    "Plan",
    "Point",
    "Results",
    "Runner",
    "Sweep",
    "ablation",
    "axis",
    "axis_values",
    "jobs_of",
    "pairs",
    "plan",
    "read_results",
    "repeat",
]

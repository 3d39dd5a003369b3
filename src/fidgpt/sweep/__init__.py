"""Sweeps: many configs as one set, composed, shown, run and read back.

sweep = Sweep("config:base", axis("tag:LearningRate=log(1e-4,1e-2,5)"), repeat("seed:3"))
sweep.run(jobs=2).best()
"""

from fidgpt.sweep.axes import *
from fidgpt.sweep.points import *
from fidgpt.sweep.results import *
from fidgpt.sweep.runners.jobs import *
from fidgpt.sweep.running import *

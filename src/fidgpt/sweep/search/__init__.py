"""Searches on one machine, by Optuna: points that are chosen by what came of those before.

Search("config:base", space("tag:LearningRate=log(1e-5,1e-1)"), sampler="tpe:50",
       objective="validation/loss", stop="asha").run(jobs=2)
"""

from fidgpt.sweep.search.search import Found, Search
from fidgpt.sweep.search.space import Space, space

__all__ = ["Found", "Search", "Space", "space"]

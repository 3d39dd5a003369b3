"""Searches and population-based training by Ray Tune, on a cluster or on this machine alone.

search = Search("config:base", space("tag:LearningRate=log(1e-5,1e-1)"), sampler="tpe:50",
                objective="validation/loss", stop="asha")
search_with_tune(search, RayRunner(jobs=8, gpus=1))
"""

from fidgpt.sweep.tune.member import Lineage
from fidgpt.sweep.tune.population import Evolved, Population, evolve, read_pbt
from fidgpt.sweep.tune.searching import search_with_tune

__all__ = ["Evolved", "Lineage", "Population", "evolve", "read_pbt", "search_with_tune"]

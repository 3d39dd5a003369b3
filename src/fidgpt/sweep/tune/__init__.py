"""Population-based training by Ray Tune, on a cluster or on this machine alone.

evolve(Population("config:base", space("tag:LearningRate=log(1e-5,1e-1)"), size=8,
                  objective="validation/loss"), RayRunner(gpus=1))
"""

from fidgpt.sweep.tune.member import Lineage
from fidgpt.sweep.tune.population import Evolved, Population, evolve, read_pbt

__all__ = ["Evolved", "Lineage", "Population", "evolve", "read_pbt"]

"""What must hold in the whole graph of a run, for every command that asks."""

from fidgpt.configs import constraints as rules

CONSTRAINTS = [vars(rules)[name] for name in rules.__all__]

"""YAML of `_target_` calls, as Hydra reads it, into graphs and back."""

from fidgpt.interop.targets.reading import read_targets
from fidgpt.interop.targets.writing import write_targets

__all__ = ["read_targets", "write_targets"]

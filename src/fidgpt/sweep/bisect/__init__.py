"""Which difference between two runs did it: `Bisection(good, bad, objective=...).find(...)`."""

from fidgpt.sweep.bisect.bisection import Bisection
from fidgpt.sweep.bisect.culprits import Culprits
from fidgpt.sweep.bisect.measuring import Measuring, Stopped
from fidgpt.sweep.bisect.minimal import Verdict, minimal, together

__all__ = ["Bisection", "Culprits", "Measuring", "Stopped", "Verdict", "minimal", "together"]

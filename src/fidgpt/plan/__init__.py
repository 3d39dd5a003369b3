"""What a run takes before any machine is rented: memory, seconds, mesh and price."""

from fidgpt.plan.estimate import *
from fidgpt.plan.hardware import *
from fidgpt.plan.planner import *
from fidgpt.plan.stages import *

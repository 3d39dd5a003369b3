"""What a model costs: operations, parameters and memory, declared by its modules or measured.

Nothing here needs the model's memory: it may be on the meta device, and of any size.
"""

from fidgpt.cost.flops import *
from fidgpt.cost.memory import *

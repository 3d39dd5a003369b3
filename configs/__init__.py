"""What to train: each function returns the whole graph of one run."""

from fidgpt.configs.base import base
from fidgpt.configs.debug import debug
from fidgpt.configs.gpt2 import gpt2_124m, gpt2_355m, gpt2_774m, gpt2_1558m

__all__ = ["base", "debug", "gpt2_124m", "gpt2_355m", "gpt2_774m", "gpt2_1558m"]

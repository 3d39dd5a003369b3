"""Attention itself, from queries, keys and values, in several forms with one meaning.

`fastest` takes the one that suits the device and the case. A form that cannot do a case leaves it
to another that can, so that any of them serves any model.
"""

from fidgpt.model.kernels.blockwise import blockwise
from fidgpt.model.kernels.dense import dense
from fidgpt.model.kernels.fastest import fastest
from fidgpt.model.kernels.flex import flex
from fidgpt.model.kernels.scoring import Kernel, Scoring
from fidgpt.model.kernels.sdpa import sdpa

__all__ = ["Kernel", "Scoring", "blockwise", "dense", "fastest", "flex", "sdpa"]

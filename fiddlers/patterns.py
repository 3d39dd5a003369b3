"""The pattern of blocks that repeats over the depth."""

import math
from collections.abc import Sequence

import fiddle as fdl

from fidgpt.graph import clone_part


def repeated(blocks: Sequence[fdl.Buildable], every: int) -> list[fdl.Buildable]:
    """The same pattern, so long that each `every`-th block of it is each `every`-th layer.

    Every entry is a node of its own: one of them can be changed alone. What layers shared, such as
    a RoPE, they still share.
    """
    length = math.lcm(len(blocks), every)
    return [clone_part(blocks[i % len(blocks)]) for i in range(length)]

"""What can become of a file: cut, emptied, a bit turned, a block of zeros, gone."""

import os
import random
from collections.abc import Callable
from pathlib import Path

Hurt = Callable[[Path, random.Random], None]


def truncate(file: Path, draw: random.Random) -> None:
    """The end is missing, or all of it."""
    os.truncate(file, draw.choice([0, draw.randrange(file.stat().st_size)]))


def flip(file: Path, draw: random.Random) -> None:
    """One bit is another."""
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def zero(file: Path, draw: random.Random) -> None:
    """A block was never written, as after a loss of power."""
    data = file.read_bytes()
    begin = draw.randrange(len(data))
    end = min(begin + 512, len(data))
    hole = data[:begin] + bytes(end - begin) + data[end:]
    file.write_bytes(hole if hole != data else data[:-1])


def remove(file: Path, draw: random.Random) -> None:
    """It is not there."""
    file.unlink()

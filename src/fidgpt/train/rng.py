"""Named streams of random numbers, derived from a seed and a purpose, never from global state."""

import hashlib
import json

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, as independent of every other as SHA-256 makes it.

    `derive_seed(seed, "dropout", step)` is the same on every machine and in every Python. The
    result has 63 bits, so that it fits a signed integer.
    """
    text = json.dumps([seed, *purpose])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_torch(seed: int, *, device: torch.device) -> None:
    """Seeds torch's own random numbers on the CPU and on `device`, as `torch.manual_seed` does.

    That one writes down the whole stack for each kind of accelerator that is not in use: 1 ms.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)

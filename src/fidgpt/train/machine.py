"""The name of the machine that a run has, such as h100x8 or cpux1."""

import os
import re

import torch

VARIABLE = "FIDGPT_MACHINE"
_MAKERS = re.compile(r"\b(NVIDIA|AMD|Intel|Tesla|GeForce|Quadro|Instinct|Graphics)\b|\(\w+\)")


def machine_name() -> str:
    """What one process computes on, and how many processes there are: `h100x8`, `cpux1`.

    The environment variable FIDGPT_MACHINE, where it is set, is the answer: it stands for a
    machine that is not at hand.
    """
    said = os.environ.get(VARIABLE)
    return said or f"{_device_name()}x{os.environ.get('WORLD_SIZE', '1')}"


def short_name(device: str) -> str:
    """The model of a device from its full name: h100 of `NVIDIA H100 80GB HBM3`."""
    words = re.split(r"[\s\-_,]+", _MAKERS.sub(" ", device).strip())
    has_number = next((i for i, word in enumerate(words) if re.search(r"\d", word)), 0)
    return "".join(words[: has_number + 1]).lower() or "unknown"


def _device_name() -> str:
    if torch.cuda.is_available():
        return short_name(torch.cuda.get_device_name())
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if kind is None else kind.type

"""What GPUs can do at best, as their makers' data sheets say."""

import re

from fidgpt.train.machine import short_name

# Dense products in bfloat16 per second, summed in float32 and without sparsity, by what stands in
# the name that a driver gives. Kinds of a model come before the model itself.
_BFLOAT16 = {
    "GB200": 2500e12,
    "B300": 2250e12,
    "B200": 2250e12,
    "GH200": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "A40": 150e12,
    "A30": 165e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L20": 119.5e12,
    "L4": 121e12,
    "RTX A6000": 155e12,
    "RTX 5090": 209e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "MI325X": 1307e12,
    "MI300X": 1307e12,
    "MI250X": 191.5e12,  # of one of its two halves, each of which is a device
}
_BY_SHORT_NAME = {short_name(model): flops for model, flops in _BFLOAT16.items()}


def bfloat16_flops(device: str) -> float | None:
    """Peak of a device by its full name, as `NVIDIA H100 80GB HBM3`; None if no sheet is known."""
    for model, flops in _BFLOAT16.items():
        if re.search(rf"\b{model}\b", device):
            return flops
    return None


def bfloat16_flops_of(short: str) -> float | None:
    """The same by its short name, as `h100`."""
    return _BY_SHORT_NAME.get(short)


def short_names() -> list[str]:
    """The devices whose data sheets are known."""
    return sorted(_BY_SHORT_NAME)

"""What a device can do at best, which utilisation is measured against."""

import time

import torch

_SIZE = 1024
_BUDGET = 0.2  # seconds

# Dense bf16 products per second without sparsity, from the makers' data sheets.
_DATA_SHEETS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
}


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a matrix product at its best.

    Read from a data sheet where the device has one and computes in bf16. Elsewhere the best of
    as many products as fit into a fifth of a second: what else runs on the machine hides part of
    it, and a short pause in that shows it.
    """
    if device.type == "cuda" and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        for model, flops in _DATA_SHEETS.items():
            if model in name:
                return flops
    left = torch.ones(_SIZE, _SIZE, device=device, dtype=dtype)
    best, end = _seconds(left), time.perf_counter() + _BUDGET
    while time.perf_counter() < end:
        best = min(best, _seconds(left))
    return 2 * _SIZE**3 / best


def _seconds(matrix: torch.Tensor) -> float:
    begin = time.perf_counter()
    product = matrix @ matrix
    product[0, 0].item()  # waits for a device that works on its own
    return time.perf_counter() - begin

"""What a device can do at best, which utilisation is a share of."""

import pytest
import torch

from fidgpt.train import device
from fidgpt.train.device import peak_flops


def test_a_device_has_a_peak():
    assert peak_flops(torch.device("cpu"), torch.float32) > 1e6


def test_the_peak_of_a_format_that_a_cpu_is_slow_in_is_not_that_of_a_large_product(monkeypatch):
    tried, now = [], 0.0

    def imitated(matrix):
        nonlocal now
        tried.append(len(matrix))
        seconds = len(matrix) ** 3 / (1.5e9 if len(matrix) < 512 else 0.5e9)
        now += seconds
        return seconds

    monkeypatch.setattr(device, "_seconds", imitated)
    monkeypatch.setattr(device.time, "perf_counter", lambda: now)
    assert peak_flops(torch.device("cpu"), torch.float16) == pytest.approx(3e9)
    assert tried == [128, 256, 512]

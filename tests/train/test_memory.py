"""Holding on to freed memory, in a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from fidgpt.train.memory import keep_freed_memory

def faults(times):
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.zeros(16 << 20)  # more than glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin

if sys.argv[1] == "keep":
    keep_freed_memory()
faults(2)
# A small piece may come to lie where the large one was: that happens now and then, not always.
print(min(faults(5) for _ in range(4)))
"""


def _faults(mode: str) -> int:
    command = [sys.executable, "-c", PROGRAM, mode]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts page faults of Linux")
def test_a_freed_tensor_is_not_fetched_from_the_kernel_again():
    assert _faults("keep") < _faults("plain") / 10

"""Memory: what is held in a process of its own, the most there was, and what is said of a lack."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from run_facts import FACTS

from fidgpt.train import RunError
from fidgpt.train.meters import peak_memory, within_memory
from fidgpt.train.summary_text import memory_text

PROGRAM = """
import resource, sys
import torch
from fidgpt.train.meters import keep_freed_memory

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


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nGPU 0 has ..."),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_too_little_memory_is_a_mistake_with_a_remedy(error: Exception) -> None:
    remedy = pytest.raises(RunError, match=r"there is not enough memory: .+\n.*micro_batch")
    with remedy, within_memory():
        raise error


def test_who_does_not_train_says_another_remedy() -> None:
    with pytest.raises(RunError, match="\nWrite less.$"), within_memory(remedy="Write less."):
        raise MemoryError


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="^a bug$"), within_memory():
        raise RuntimeError("a bug")


def test_a_run_that_needs_more_than_there_is_says_so_before_it_begins() -> None:
    peak = FACTS.memory.peak
    enough, less, unknown = (
        memory_text(dataclasses.replace(FACTS, memory_there=there)) for there in (peak, 100, None)
    )
    assert less == f"{enough}; it has 100 B only"
    assert unknown == enough


def test_the_most_memory_that_a_process_had_only_grows():
    before = peak_memory(torch.device("cpu"))
    held = torch.ones(64 << 20, dtype=torch.uint8)
    assert peak_memory(torch.device("cpu")) >= max(before, held.nbytes)

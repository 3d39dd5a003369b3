"""Observers of a run: profiler, watchdog, snapshots."""

import fiddle as fdl

from fidgpt.fiddlers.trackers import added_by_kind
from fidgpt.train import Determinism, MemorySnapshot, Profiler, Trainer, Watchdog

__all__ = ["use_determinism", "use_memory_snapshot", "use_profiler", "use_watchdog"]


def use_determinism(cfg: fdl.Config[Trainer]) -> None:
    """Use deterministic algorithms on GPUs, which are slower; no-op on CPUs."""
    _add(cfg, fdl.Config(Determinism))


def use_profiler(
    cfg: fdl.Config[Trainer],
    begin: int = 10,
    num_steps: int = 3,
    with_stack: bool = False,
    with_memory: bool = False,
) -> None:
    """Trace some steps, for Perfetto and as a table, in the run's folder `profile`."""
    profiler = fdl.Config(Profiler, begin=begin, num_steps=num_steps)
    profiler.with_stack, profiler.with_memory = with_stack, with_memory
    _add(cfg, profiler)


def use_memory_snapshot(cfg: fdl.Config[Trainer], begin: int = 10, num_steps: int = 3) -> None:
    """Record GPU allocations during some steps, for torch's memory viewer."""
    _add(cfg, fdl.Config(MemorySnapshot, begin=begin, num_steps=num_steps))


def use_watchdog(
    cfg: fdl.Config[Trainer], seconds: float = 600.0, first_seconds: float = 1800.0
) -> None:
    """Stop a run that hangs, after dumping its stacks into the folder `stacks`."""
    _add(cfg, fdl.Config(Watchdog, seconds=seconds, first_seconds=first_seconds))


def _add(cfg: fdl.Config[Trainer], observer: fdl.Config) -> None:
    cfg.observers = added_by_kind(cfg.observers, observer)

"""Observers of a run: profiler, watchdog, snapshots."""

from typing import Any

import fiddle as fdl

from fidgpt.train import Determinism, MemorySnapshot, Profiler, Trainer, Watchdog

# The order in a config, independent of that of fiddlers; observers not listed come first.
_ORDER: list[Any] = [Determinism, MemorySnapshot, Profiler, Watchdog]


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
    """Add an observer in a fixed order, replacing one of its kind."""
    kind = fdl.get_callable(observer)
    others = [one for one in cfg.observers if fdl.get_callable(one) is not kind]
    known = [one for one in [*others, observer] if fdl.get_callable(one) in _ORDER]
    own = [one for one in others if fdl.get_callable(one) not in _ORDER]
    cfg.observers = own + sorted(known, key=lambda one: _ORDER.index(fdl.get_callable(one)))

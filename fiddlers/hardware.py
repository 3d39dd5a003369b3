"""Changes that depend on the machine."""

import fnmatch
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import fiddle as fdl

from fidgpt.fiddlers.large_meshes import LARGE_MESHES
from fidgpt.graph.binding import numbers_in
from fidgpt.train import Trainer, machine_name

__all__ = ["for_hardware", "set_micro_batch_size"]

Rules = Sequence[tuple[str, Sequence[Callable[[fdl.Config], None] | fdl.Partial[None]]]]


def set_micro_batch_size(cfg: fdl.Config[Trainer], size: int = 8) -> None:
    """Compute at most `size` sequences at once, accumulating gradients."""
    cfg.micro_batch_size = size


# The first pattern that matches the machine's name decides.
RULES: Rules = [
    ("cpu*", [partial(set_micro_batch_size, size=8)]),
    ("[abh][12]00x*", [partial(set_micro_batch_size, size=32)]),
]


def for_hardware(cfg: fdl.Config[Trainer], machine: str | None = None) -> None:
    """Apply the first rule whose pattern matches the machine, and log it.

    Rules of the model (`fidgpt.fiddlers.large_meshes`) come before rules for all models.

    Args:
      cfg: the graph to change.
      machine: a name such as `h100x8` (eight processes with an H100 each) or `cpux1`; defaults to
        --hardware, or else to the current machine.
    """
    sizes: tuple[Any, ...] = ()
    if isinstance(cfg.model, fdl.Buildable):
        number = numbers_in(cfg)
        sizes = number(cfg.model, "hidden_dim"), number(cfg.model, "num_layers")
    large = [rule for key, rules in LARGE_MESHES.items() if key == sizes for rule in rules]
    apply_rules(cfg, [*large, *RULES], machine=machine_name() if machine is None else machine)


def apply_rules(cfg: fdl.Config[Trainer], rules: Rules, *, machine: str) -> None:
    """Apply rules of a project, in its own version of `for_hardware`.

    Args:
      cfg: the graph to change.
      rules: pairs of a shell pattern and the fiddlers to apply: functions, or partials of them.
      machine: the name to match.
    """
    for pattern, fiddlers in rules:
        if fnmatch.fnmatchcase(machine, pattern):
            functions = [
                fdl.build(part) if isinstance(part, fdl.Partial) else part for part in fiddlers
            ]
            done = ", ".join(map(_log, functions)) or "nothing to change"
            print(f"for_hardware: {machine} matches {pattern}: {done}", file=sys.stderr)
            for function in functions:
                function(cfg)
            return
    known = ", ".join(pattern for pattern, _ in rules)
    print(
        f"for_hardware: no rule matches {machine}, so nothing is changed (rules: {known})",
        file=sys.stderr,
    )


def _log(fiddler: Callable[[fdl.Config], None]) -> str:
    if isinstance(fiddler, partial):
        arguments = ", ".join(f"{name}={value!r}" for name, value in fiddler.keywords.items())
        return f"{fiddler.func.__name__}({arguments})"
    return getattr(fiddler, "__name__", repr(fiddler))

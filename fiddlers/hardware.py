"""What a config changes for the machine that it runs on."""

import fnmatch
import sys
from collections.abc import Callable, Sequence
from functools import partial

import fiddle as fdl

from fidgpt.train import Trainer, machine_name

Rules = Sequence[tuple[str, Sequence[Callable[[fdl.Config], None] | fdl.Partial[None]]]]


def set_micro_batch_size(cfg: fdl.Config[Trainer], size: int = 8) -> None:
    """At most so many sequences are computed at once; a larger share is split."""
    cfg.micro_batch_size = size


# The first pattern that matches the machine's name decides.
RULES: Rules = [
    ("cpu*", [partial(set_micro_batch_size, size=8)]),
    ("[abh][12]00x*", [partial(set_micro_batch_size, size=32)]),
]


def for_hardware(cfg: fdl.Config[Trainer], machine: str | None = None) -> None:
    """Applies the first rule whose pattern matches the machine, and says which one it was.

    Args:
      cfg: the graph to change.
      machine: a name such as `h100x8` (eight processes with an H100 each) or `cpux1`; that of the
        machine at hand, or of --hardware, unless said.
    """
    apply_rules(cfg, RULES, machine=machine_name() if machine is None else machine)


def apply_rules(cfg: fdl.Config[Trainer], rules: Rules, *, machine: str) -> None:
    """The same by rules of one's own: what a project's own `for_hardware` calls.

    Args:
      cfg: the graph to change.
      rules: pairs of a pattern, as a shell writes it, and the fiddlers to apply: functions, or
        parts that stand for them with their arguments.
      machine: the name that the patterns are compared with.
    """
    for pattern, fiddlers in rules:
        if fnmatch.fnmatchcase(machine, pattern):
            functions = [
                fdl.build(one) if isinstance(one, fdl.Partial) else one for one in fiddlers
            ]
            done = ", ".join(map(_told, functions)) or "nothing to change"
            print(f"for_hardware: {machine} matches {pattern}: {done}", file=sys.stderr)
            for function in functions:
                function(cfg)
            return
    known = ", ".join(pattern for pattern, _ in rules)
    print(
        f"for_hardware: no rule matches {machine}, so nothing is changed (rules: {known})",
        file=sys.stderr,
    )


def _told(fiddler: Callable[[fdl.Config], None]) -> str:
    if isinstance(fiddler, partial):
        arguments = ", ".join(f"{name}={value!r}" for name, value in fiddler.keywords.items())
        return f"{fiddler.func.__name__}({arguments})"
    return getattr(fiddler, "__name__", repr(fiddler))

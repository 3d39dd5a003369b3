"""What `optimizer:` of a Levanter file says of the learning rate over the run, as directives."""

from typing import Any

from fidgpt.interop.levanter.section import Section, shown

# The fiddler for each word of `lr_schedule`, and the entries of its own that it may have.
_FIDDLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "constant": ("use_constant", {}),
    "cosine": ("use_cosine", {"exponent": 1.0}),
    "linear": ("use_linear", {}),
    "inv": ("use_inverse", {}),
    "inv_sqrt": ("use_inverse_sqrt", {}),
}
_TIMESCALE = 10_000
_CYCLES = ("cycles", "cycle_length", "haps")
_PLAIN = ("constant", "cosine", "linear")


def map_schedule(section: Section, num_steps: int) -> None:
    """Adds to the plan what is said; one cycle of a usual shape as the schedule of that name."""
    warmup = _length(section, "warmup", section.take("warmup", 0.01, float))
    decay = section.take("decay", None, float)
    decay = None if decay is None else _length(section, "decay", decay)
    rewarmup = _length(section, "rewarmup", section.take("rewarmup", 0.0, float))
    floor = section.take("min_lr_ratio", 0.1, float)
    kind, arguments = _kind(section)
    cycles = _cycles(section)
    is_full = decay is None or _steps(warmup, num_steps) + _steps(decay, num_steps) == num_steps
    if cycles or kind not in _PLAIN or (kind == "cosine" and not is_full):
        _map_phases(section, kind, arguments | {"min_lr_ratio": floor}, decay)
        section.plan.changes.append(f"fiddler:set_warmup({warmup})")
        if cycles:
            cycles["rewarmup"] = rewarmup
            section.plan.changes.append(f"fiddler:use_cycles({_told(cycles)})")
        return
    _map_plain(section, kind, _steps(warmup, num_steps), decay, floor, num_steps)


def _map_phases(
    section: Section, kind: str, arguments: dict[str, Any], decay: int | float | None
) -> None:
    name = _FIDDLERS[kind][0]
    told = "" if kind == "constant" else f"({_told(arguments)})"
    section.plan.changes.append(f"fiddler:{name}{told}")
    if decay is not None:
        section.plan.wanted.append(("schedule.decay", decay))


def _map_plain(
    section: Section,
    kind: str,
    warmup_steps: int,
    decay: int | float | None,
    floor: float,
    num_steps: int,
) -> None:
    plan = section.plan
    plan.wanted.append(("schedule.warmup_steps", warmup_steps))
    if kind == "constant":
        plan.changes.append("use:schedule=optim.Constant")
        return
    plan.wanted.append(("schedule.min_ratio", floor))
    if kind == "linear":
        steps = num_steps - warmup_steps if decay is None else _steps(decay, num_steps)
        plan.changes.append(f"use:schedule=WarmupStableDecay(decay_steps={steps})")


def _kind(section: Section) -> tuple[str, dict[str, Any]]:
    """The word for the shape of the decay, and what its fiddler is told of it."""
    arguments: dict[str, Any] = {}
    if section.takes("lr_schedule", dict):
        inner = section.section("lr_schedule")
        kind = inner.take("type", "cosine", str)
        if kind == "inv_sqrt":
            arguments["timescale"] = int(inner.take("timescale", float(_TIMESCALE), float))
        inner.neutral(_FIDDLERS[kind][1] if kind in _FIDDLERS else {})
        inner.close()
    else:
        kind = section.take("lr_schedule", "cosine", str)
    if kind not in _FIDDLERS:
        section.unmap("lr_schedule", kind, "a cosine stays")
        return "cosine", {}
    return kind, {"timescale": _TIMESCALE} | arguments if kind == "inv_sqrt" else {}


def _cycles(section: Section) -> dict[str, Any]:
    """How the run is cut into cycles, in the words of `use_cycles`; nothing where it is not."""
    said = [key for key in _CYCLES if section.left.get(key) is not None]
    if len(said) > 1:
        section.plan.mistakes.append(
            f"{section.path}: {' and '.join(said)} say the same thing: leave one of them."
        )
    found: dict[str, Any] = {}
    for key in said:
        value: Any = section.left.pop(key)
        name = "cycles" if key == "haps" else key
        if key == "cycle_length" and type(value) in (int, float):
            found[name] = _length(section, key, float(value))
        elif _is_steps(value) or (key == "cycles" and type(value) is int):
            found[name] = value
        else:
            section.plan.mistakes.append(
                f"{section.path}.{key} is {shown(value)}, and a number or a list of steps is asked."
            )
    return found


def _is_steps(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _length(section: Section, key: str, value: float) -> int | float:
    """A share, up to 1, or a number of steps; Levanter tells them apart by their size alone."""
    if value < 0 or (value > 1 and not value.is_integer()):
        section.plan.mistakes.append(
            f"{section.path}.{key} is {value}, and a share from 0 to 1 or a whole number of steps "
            "is asked."
        )
        return 0.0
    return value if value <= 1 else int(value)


def _steps(length: int | float, num_steps: int) -> int:
    return length if isinstance(length, int) else int(length * num_steps)


def _told(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())

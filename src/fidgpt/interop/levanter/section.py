"""Sections of a Levanter file."""

import re
from dataclasses import dataclass, field
from typing import Any

from fidgpt.graph.yaml import Foreign

BLOCK = "model.blocks[0]"  # what all layers are like
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(slots=True)
class Plan:
    """What was found so far.

    Attributes:
      config: the named config to begin with.
      changes: directives that bring in other parts.
      wanted: values for paths of the graph.
      last: directives that come when those values are there.
      unmapped: paths of the file for which fidgpt has nothing, each with its value and why.
      mistakes: what is wrong with the file.
    """

    config: str = "config:base"
    changes: list[str] = field(default_factory=list)
    wanted: list[tuple[str, Any]] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    unmapped: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    def said(self, path: str, otherwise: Any = 0) -> Any:
        """The value that is wanted for a path so far."""
        return dict(self.wanted).get(path, otherwise)


class Section:
    """A mapping of the file: each entry is taken out when it is asked for."""

    def __init__(self, plan: Plan, path: str, written: Any) -> None:
        self.plan = plan
        self.path = path
        self.left: dict[Any, Any] = {}
        if isinstance(written, Foreign):
            plan.unmapped.append(f"{path}: {written.tag} {written.value:.60} (is another file)")
        elif isinstance(written, dict):
            self.left = dict(written)
        elif written is not None:
            plan.mistakes.append(f"{path} is {shown(written)}, and a mapping is asked.")

    def section(self, key: str) -> "Section":
        """The section inside of this one; empty where nothing is said."""
        return Section(self.plan, self._at(key), self.left.pop(key, None))

    def inside(self, key: str, written: Any) -> "Section":
        """What was found at a place of this one, as a section."""
        return Section(self.plan, self._at(key), written)

    def take(self, key: str, default: Any, kind: type) -> Any:
        """A value of a kind, or the default where nothing is said, or null."""
        value = self.left.pop(key, None)
        if value is None:
            return default
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is kind:
            return value
        self.plan.mistakes.append(
            f"{self._at(key)} is {shown(value)}, and {_KINDS[kind]} is asked."
        )
        return default

    def takes(self, key: str, *kinds: type) -> bool:
        """Whether something of one of some kinds is said."""
        return type(self.left.get(key)) in kinds

    def unmap(self, key: str, value: Any, reason: str) -> None:
        """Notes that fidgpt has nothing for a value, said or by default."""
        self.plan.unmapped.append(f"{self._at(key)}: {shown(value)} ({reason})")

    def neutral(self, defaults: dict[str, Any]) -> None:
        """Takes out entries that say no more than what fidgpt does anyway."""
        for key, value in defaults.items():
            if key in self.left and (self.left[key] is None or self.left[key] == value):
                del self.left[key]

    def close(self) -> None:
        """Notes whatever is left."""
        for key, value in self.left.items():
            self.unmap(str(key), value, "fidgpt has nothing for it")

    def _at(self, key: str) -> str:
        return f"{self.path}.{key}".removeprefix(".")


def shown(value: Any) -> str:
    """A value of the file in a message, however large it is."""
    if isinstance(value, dict | list):
        return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
    if isinstance(value, Foreign):
        return f"{value.tag} {value.value:.60}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.60}" if isinstance(value, str) else str(value)


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")


def map_average(section: Section) -> None:
    """Adds to the plan what `model_averaging:` says."""
    if not section.left:
        return
    plan, kind = section.plan, section.take("type", "", str)
    beta = section.take("beta", 0.999, float)
    if kind == "ema":
        plan.changes.append(f"fiddler:use_ema(beta={beta!r})")
    elif kind == "ema_decay_sqrt":
        plan.changes.append(f"fiddler:use_ema_decay_sqrt(beta={beta!r})")
        plan.wanted += [
            ("average.switch_step", section.take("switch_step", 100_000, int)),
            ("average.decay_steps", section.take("decay_steps", 100_000, int)),
        ]
    else:
        section.unmap("type", kind or None, "weights are not averaged")
    section.close()


def map_skipped_steps(section: Section) -> None:
    """Adds to the plan what `skip_bad_steps` of an optimizer says: true, a window, or both."""
    said = section.left.pop("skip_bad_steps", None)
    if isinstance(said, dict):
        settings = Section(section.plan, f"{section.path}.skip_bad_steps", said)
        window = settings.take("rolling_interval_length", 128, int)
        deviations = settings.take("sigma_factor", 6.0, float)
        settings.close()
    elif isinstance(said, bool | int | None):
        window, deviations = (128 if said is True else said or 0), 6.0
    else:
        section.unmap("skip_bad_steps", said, "no step is left out")
        return
    if window:
        arguments = f"window={window}, num_deviations={deviations!r}"
        section.plan.changes.append(f"fiddler:use_skip_step({arguments})")


def map_checkpoints(section: Section, num_steps: int) -> None:
    """Levanter keeps every checkpoint that `keep` names, and writes passing ones by the clock."""
    _map_interval(section)
    keep = section.left.pop("keep", [{"every": 10_000}])
    parts = [part for part in keep if _is_part(part)] if isinstance(keep, list) else []
    if parts != keep:
        section.unmap("keep", shown(keep), "checkpoints come every so many steps, all alike")
    elif len(parts) == 1 and parts[0].get("until") is None:
        every = parts[0]["every"]
        kept = max(1, -(-num_steps // every))
        section.plan.wanted += [("checkpoints.every", every), ("checkpoints.keep_last", kept)]
    else:
        section.plan.wanted.append(("checkpoints.every", None))
        section.plan.changes += [
            f"fiddler:keep_checkpoints(every={part['every']}, until={part.get('until')})"
            for part in parts
        ]
    section.close()


def _is_part(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.keys() <= {"every", "until"}
        and type(part.get("every")) is int
        and part["every"] > 0
        and type(part.get("until")) in (int, type(None))
    )


def _map_interval(section: Section) -> None:
    """Where nothing is said, a quarter of an hour is meant."""
    said = section.left.pop("save_interval", "15m")
    if isinstance(said, str) and _SPAN.fullmatch(said.replace(" ", "")):
        pairs = re.findall(r"([\d.]+)([smhd])", said)
        seconds = sum(float(count) * _SECONDS[unit] for count, unit in pairs)
    elif isinstance(said, int | float) and not isinstance(said, bool):
        seconds = float(said)
    elif said is None:
        return
    else:
        section.unmap("save_interval", said, "checkpoints come by steps alone")
        return
    if seconds > 0:
        section.plan.changes.append(f"fiddler:save_by_time(minutes={seconds / 60!r})")

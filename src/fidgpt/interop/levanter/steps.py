"""What a Levanter file says of steps that are left out, of averages and of checkpoints."""

import re
from typing import Any

from fidgpt.interop.levanter.section import Section, shown

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

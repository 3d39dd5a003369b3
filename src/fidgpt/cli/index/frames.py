"""What the index tells of the graphs of configs, so that few are made to find the nearest one."""

from collections.abc import Mapping
from typing import Any

from fidgpt.cli.index.knobs import LONGEST, Knob
from fidgpt.cli.index.store import read
from fidgpt.graph.spelling.nearness import Frame


def known_frames() -> dict[str, Frame]:
    """The frame of each config, by its directive; none where the index is not true any more."""
    index, is_true = read()
    knobs: Mapping[str, Any] = index["knobs"] if index and is_true else {}
    return {f"config:{name}": frame_from(told) for name, told in knobs.items()}


def frame_from(knobs: list[Knob]) -> Frame:
    """The frame of a graph of which the knobs are known; it may hold less than `frame_of` gives."""
    frame: Frame = {"": ("", {})}
    alone = _alone(knobs)
    for knob in knobs:
        above, step = _split(knob["path"])
        if above not in frame or "same" in knob or "heard" in knob:
            continue
        values = frame[above][1]
        if call := knob.get("part"):
            values[step] = call
            frame[knob["path"]] = call, {}
        elif "holds" in knob:
            if f"{knob['path']}[0]" in alone:
                values[step] = "list"
                frame[knob["path"]] = "list", {}
        elif len(knob["value"]) < LONGEST and not ("unset" in knob and "tags" in knob):
            values[step] = knob["value"]
    return frame


def _alone(knobs: list[Knob]) -> set[str]:
    """The paths of the items that are alone in their list."""
    paths = {knob["path"] for knob in knobs}
    firsts = [path for path in paths if path.endswith("[0]")]
    return {path for path in firsts if f"{path[:-3]}[1]" not in paths}


def _split(path: str) -> tuple[str, str]:
    """The path of what holds a place, and the step from there."""
    cut = max(path.rfind("."), path.rfind("["))
    return (path[:cut], path[cut:]) if cut > 0 else ("", f".{path}")

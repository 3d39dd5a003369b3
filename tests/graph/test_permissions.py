"""What a run may go on with, and what is refused by name."""

from typing import Any, ClassVar

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigErrors
from fidgpt.graph.permissions import Permission, allowed_changes, permission_of

from .parts import Outer, Part


class Speed(fdl.Tag):
    """How fast."""

    may_change = "restart"


class Width(fdl.Tag):
    """How wide."""


class Log:
    def __init__(self, *, every: int = 10) -> None: ...


class Motor:
    def __init__(self, *, speed: float, width: int) -> None: ...


class Run:
    MAY_CHANGE: ClassVar = {"logs": "live", "limit": "restart"}

    def __init__(
        self, *, motor: Motor, logs: list[Log], limit: float = 1.0, spare: Motor | None = None
    ) -> None: ...


def run() -> Any:
    motor = fdl.Config(Motor, speed=Speed.new(1.0), width=Width.new(3))
    return fdl.Config(Run, motor=motor, logs=[fdl.Config(Log)])


@pytest.mark.parametrize(
    ("path", "permission"),
    [
        ("", Permission.NEVER),
        ("motor.width", Permission.NEVER),
        ("motor.speed", Permission.RESTART),
        ("logs", Permission.LIVE),
        ("logs[0].every", Permission.LIVE),
    ],
)
def test_the_nearest_word_on_the_way_decides(path: str, permission: Permission) -> None:
    assert permission_of(run(), path) is permission


def test_what_may_change_is_returned_with_how() -> None:
    new = run()
    new.motor.speed, new.limit = 2.0, 5.0
    new.logs.append(fdl.Config(Log))
    found = {one.change.path: one.permission.name for one in allowed_changes(run(), new)}
    assert found == {
        "motor.speed": "RESTART",
        "limit": "RESTART",
        "logs[1]": "LIVE",
    }


def test_a_refused_change_comes_from_what_is_new() -> None:
    old, new = (
        fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=width))
        for width in (Width.new(), 4)
    )
    for pair, sources in [
        ((old, new), ("child.width",)),
        ((new, old), ("child.width", "width")),
    ]:
        with pytest.raises(ConfigErrors) as caught:
            allowed_changes(*pair)
        assert caught.value.mistakes[0].sources == sources

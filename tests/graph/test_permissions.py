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
        ("motor", Permission.NEVER),
        ("motor.width", Permission.NEVER),
        ("motor.speed", Permission.RESTART),
        ("limit", Permission.RESTART),
        ("logs", Permission.LIVE),
        ("logs[0].every", Permission.LIVE),
        ("logs[7]", Permission.LIVE),
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


class Faster:
    WRAPS: ClassVar = {"motor": "live"}

    def __init__(self, motor: Motor, *, by: int = 2) -> None: ...


class Rougher:
    WRAPS: ClassVar = {"motor": "restart"}

    def __init__(self, motor: Motor) -> None: ...


def around(*functions: Any, root: Any = None, **arguments: Any) -> Any:
    root = root or run()
    for function in functions:
        root.motor = fdl.Config(function, motor=root.motor, **arguments)
    return root


@pytest.mark.parametrize(
    ("old", "new", "permission"),
    [
        (run(), around(Faster), "LIVE"),
        (around(Faster), run(), "LIVE"),
        (around(Faster), around(Faster, by=3), "LIVE"),
        (run(), around(Rougher), "RESTART"),
        (around(Faster, Rougher), run(), "RESTART"),
        (around(Faster), around(Faster, Rougher), "RESTART"),
    ],
)
def test_what_stands_around_a_part_comes_and_goes(old: Any, new: Any, permission: str) -> None:
    found = allowed_changes(old, new)
    assert {one.permission.name for one in found} == {permission}


def wider() -> Any:
    root = run()
    root.motor.width = 4
    return root


def test_what_it_stands_around_is_still_the_same() -> None:
    with pytest.raises(ConfigErrors, match=r"motor\.width cannot change .*: 3 -> 4"):
        allowed_changes(run(), around(Faster, root=wider()))
    with pytest.raises(ConfigErrors, match=r"motor\.motor\.width cannot change .*: 3 -> 4"):
        allowed_changes(around(Faster), around(Faster, root=wider()))


def test_a_part_in_two_places_stays_one() -> None:
    old, new = run(), around(Faster)
    old.spare, new.spare = old.motor, new.motor
    assert {one.permission.name for one in allowed_changes(old, new)} == {"LIVE"}
    new.spare = around(Faster).motor
    with pytest.raises(ConfigErrors, match="cannot change"):
        allowed_changes(old, new)


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

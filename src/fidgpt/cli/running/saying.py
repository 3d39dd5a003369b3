"""Commands as somebody types them."""

import shlex
from collections.abc import Iterable


def allow_flags(allowed: Iterable[str]) -> list[str]:
    """The flags that tell a command of packages of the user's own."""
    return [f"--allow={package}" for package in allowed]


def train_command(directives: Iterable[str], *, allowed: Iterable[str] = ()) -> str:
    """The line that trains what directives make, in which packages are allowed."""
    said = [f"--config={directive}" for directive in directives]
    return shlex.join(["python", "train.py", *allow_flags(allowed), *said])

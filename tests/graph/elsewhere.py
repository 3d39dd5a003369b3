"""Classes whose names others have too."""

from . import parts


class Part:
    """No kin of the other one."""

    def __init__(self, width: int = 0) -> None:
        self.width = width


Heir = type("Part", (parts.Part,), {"__doc__": "One that inherits from the other."})

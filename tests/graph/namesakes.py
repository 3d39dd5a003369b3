"""A tag of a name that another one has, for tests."""

import fiddle as fdl


class Width(fdl.Tag):
    """Another width than that of the parts."""

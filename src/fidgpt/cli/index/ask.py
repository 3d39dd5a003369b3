"""The index as it is asked for: whatever is at hand at once, or the whole of it."""

import sys

from fidgpt.cli.index.store import Index, can_keep, read, rebuild_behind, rebuild_now


def at_hand() -> Index:
    """What can be known at once, torch not being loaded.

    Where the index is not true any more, names are read anew from the sources, and knobs are told
    as they were.
    """
    index, is_true = read()
    return index if index and is_true else (index or {}) | _names()


def for_completion(*, with_knobs: bool) -> Index:
    """What is at hand, while an index that is not true any more is built anew behind.

    Where there never was one, and knobs are asked for, it is waited for.
    """
    index, is_true = read()
    if index and is_true:
        return index
    if index is None and with_knobs and can_keep():
        return whole()
    rebuild_behind()
    from fidgpt.cli.index.command_flags import command_flags  # late: a true index has them

    return (index or {}) | _names() | {"flags": command_flags()}


def whole() -> Index:
    """All of it; where it is missing or not true any more it is built first, and that is said."""
    index, is_true = read()
    if index and is_true:
        return index
    print("Looking at all configs and parts (once, until they change) ...", file=sys.stderr)
    try:
        return rebuild_now()
    except RuntimeError as error:
        print(f"  not possible: {error}", file=sys.stderr)
        return (index or {}) | _names()


def _names() -> Index:
    from fidgpt.cli.index.names import names, names_of_projects  # late: a true index has them

    own, others = names(), names_of_projects()
    return {kind: own[kind] | others[kind] for kind in own}

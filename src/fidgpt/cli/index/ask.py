"""The index as it is asked for: whatever is at hand at once, or the whole of it."""

import sys
from collections.abc import Sequence

from fidgpt.cli.index.store import Index, can_keep, read, rebuild_in_background, rebuild_now
from fidgpt.cli.showing.chosen import chosen_config, directive_for, is_listed_nowhere


def at_hand() -> Index:
    """What can be known at once, torch not being loaded.

    Where the index is not true any more, names are read anew from the sources, and knobs are told
    as they were.
    """
    index, is_true = read()
    return index if index and is_true else (index or {}) | _names()


def for_completion(
    *, with_knobs: bool, directives: Sequence[str] = (), allowed: Sequence[str] = ()
) -> Index:
    """What is at hand, while an index that is not true any more is built anew in the background.

    Where there never was one, and knobs are asked for, it is waited for.

    Args:
      with_knobs: whether what is typed is a path or a quantity.
      directives: those on the line, of which the first may begin with what no list has.
      allowed: packages that --allow names there.
    """
    index = _for_completion(with_knobs)
    name = chosen_config(directives)
    known = {name, name.partition("(")[0]} & index.get("knobs", {}).keys()
    if not with_knobs or known or not is_listed_nowhere(name):
        return index
    from fidgpt.cli.index.chosen import with_last_known  # late: most configs are on a list

    try:
        return with_last_known(index, directive_for(name), allowed)
    except ValueError:  # which a ConfigError is: the line begins with what there is not
        return index


def _for_completion(with_knobs: bool) -> Index:
    index, is_true = read()
    if index and is_true:
        return index
    if index is None and with_knobs and can_keep():
        return whole()
    rebuild_in_background()
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


def of_chosen(directives: Sequence[str], allowed: Sequence[str] = ()) -> Index:
    """The whole, and in it the config that directives begin with, where no list has it.

    Raises:
      ConfigError: there is no such config.
    """
    index, name = whole(), chosen_config(directives)
    if name in index.get("knobs", {}) or not is_listed_nowhere(name):
        return index
    from fidgpt.cli.index.chosen import with_chosen  # late: most configs are on a list

    return with_chosen(index, directive_for(name), allowed)


def _names() -> Index:
    from fidgpt.cli.index.names import names, names_of_projects  # late: a true index has them

    own, others = names(), names_of_projects()
    return {kind: own[kind] | others[kind] for kind in own}

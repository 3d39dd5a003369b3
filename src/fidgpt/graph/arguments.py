"""The arguments of a part: those that are set, and all that there are."""

import inspect
from typing import Any

import fiddle as fdl

Key = str | int


def given(part: fdl.Buildable) -> dict[Key, Any]:
    """The arguments that are set, in the order of the signature."""
    return fdl.ordered_arguments(part)


def every(part: fdl.Buildable) -> dict[Key, Any]:
    """All arguments: what is set, else the default, else `fdl.NO_VALUE`.

    Elements of `*args` and `**kwargs` that carry a tag and no value are among them, which Fiddle
    itself does not list.
    """
    listed = fdl.ordered_arguments(part, include_defaults=True, include_unset=True)
    is_open = [key for key, tags in part.__argument_tags__.items() if tags and key not in listed]
    if not is_open:
        return listed
    both = listed | dict.fromkeys(is_open, fdl.NO_VALUE)
    return dict(sorted(both.items(), key=lambda item: _position(part, item[0])))


def _position(part: fdl.Buildable, key: Key) -> tuple[int, int]:
    names = list(part.__signature_info__.parameters)
    if isinstance(key, str):
        return (names.index(key) if key in names else len(names)), 0
    return min(key, part.__signature_info__.var_positional_start or 0), key


def default_of(part: fdl.Buildable, key: Key) -> Any:
    """The default of a parameter; `fdl.NO_VALUE` where it has none."""
    parameter = parameter_of(part, key)
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return fdl.NO_VALUE
    return parameter.default


def parameter_of(part: fdl.Buildable, key: Key) -> inspect.Parameter | None:
    """The parameter that takes an argument: `*args` and `**kwargs` take what no other does.

    None where nothing takes it.
    """
    parameters = part.__signature_info__.parameters
    kinds = {parameter.kind: parameter for parameter in parameters.values()}
    if isinstance(key, str):
        named = parameters.get(key)
        if named is None or named.kind is named.VAR_KEYWORD:
            return kinds.get(inspect.Parameter.VAR_KEYWORD)
        return None if named.kind is named.VAR_POSITIONAL else named
    first = part.__signature_info__.var_positional_start
    if first is not None and key >= first:
        return kinds[inspect.Parameter.VAR_POSITIONAL]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    at = list(parameters.values())[key] if 0 <= key < len(parameters) else None
    return at if at is not None and at.kind in positional else None


def assign(part: fdl.Buildable, key: Key, value: Any) -> None:
    """Sets an argument by its name, or by its number where it has none.

    Raises:
      AttributeError, IndexError: there is no such argument.
    """
    if isinstance(key, int):
        key = part.__signature_info__.index_to_key(key, part.__arguments__)
    if isinstance(key, str):
        setattr(part, key, value)
        return
    # Fiddle refuses to set an element of *args that is not there yet, or that was left open.
    first = part.__signature_info__.var_positional_start
    if parameter_of(part, key) is None or (
        first is not None and key > first and not {key, key - 1} & every(part).keys()
    ):
        raise IndexError(f"there is no argument number {key}")
    part.__arguments__[key] = value

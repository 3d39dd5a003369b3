"""Checks of annotations while tests run: those of jaxtyping's hook, in half of its time.

The hook puts `jaxtyping.jaxtyped` on every function, which compiles two more, binds the arguments
at each call and checks them twice. Shapes need a part of that, so that dimensions of one name
agree; other types need nothing but beartype.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

from beartype import beartype
from jaxtyping import AbstractArray, jaxtyped


def parts_of(hint: Any) -> Iterator[Any]:
    """Yield a hint and all that it is made of."""
    yield hint
    if get_origin(hint) is not Literal:
        for part in get_args(hint):
            yield from parts_of(part)


def checked(function: Any = None, *, typechecker: Any) -> Callable[..., Any]:
    """Return a function that checks its annotations, in place of `jaxtyping.jaxtyped`."""
    if function is None:
        return lambda function: checked(function, typechecker=typechecker)
    hints = [*getattr(function, "__annotations__", {}).values()]
    parts = [part for hint in hints for part in parts_of(hint)]
    has_texts = any(isinstance(part, str) for part in parts)  # which jaxtyping evaluates
    if not inspect.isfunction(function) or inspect.isgeneratorfunction(function) or has_texts:
        return jaxtyped(function, typechecker=typechecker)
    typed = beartype(function)
    if not any(inspect.isclass(part) and issubclass(part, AbstractArray) for part in parts):
        return typed

    @functools.wraps(function)
    def checks_shapes(*arguments: Any, **options: Any) -> Any:
        with jaxtyped("context"):
            return typed(*arguments, **options)

    return checks_shapes

"""Configs derived from the configs of other model families."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import fiddle as fdl

from fidgpt.train import Trainer

Make = Callable[..., fdl.Config[Trainer]]


def variant_of(
    parent: Make, *groups: Callable[..., Any], **defaults: Any
) -> Callable[[Callable[..., None]], Make]:
    """Turn a function that changes a graph into a config derived from `parent`.

    The config takes the arguments of the parent and of the function as keywords:

        @variant_of(decoder, eps=1e-6)
        def capped(cfg: fdl.Config[Trainer], *, eps: float, cap: float = 50.0) -> None: ...

        capped(hidden_dim=256, cap=30.0, ...)

    calls `decoder(hidden_dim=256, eps=1e-6, ...)` and changes its result. Arguments that both have,
    such as `eps`, are passed to both.

    Args:
      parent: returns the graph to change.
      groups: functions of arguments that several configs share. The function that changes the graph
        takes what each of them returns, by its name.
      defaults: new defaults of the arguments of the parent and of the groups.

    Raises:
      TypeError: neither the parent nor a group has such an argument.
    """
    inherited: dict[str, inspect.Parameter] = {}
    for function in (*groups, parent):
        inherited |= inspect.signature(function).parameters
    if unknown := defaults.keys() - inherited:
        raise TypeError(f"{parent.__name__} has no argument {', '.join(sorted(unknown))}")
    names = {group.__name__ for group in groups}

    def wrap(change: Callable[..., None]) -> Make:
        own = list(inspect.signature(change).parameters.values())[1:]
        own = [parameter for parameter in own if parameter.name not in names]
        parameters = {name: _with_default(p, defaults) for name, p in inherited.items()}
        parameters |= {p.name: p for p in own if p.name not in parameters}
        signature = inspect.Signature(
            list(parameters.values()), return_annotation=fdl.Config[Trainer]
        )

        @wraps(change)
        def make(**settings: Any) -> fdl.Config[Trainer]:
            try:
                bound = signature.bind(**settings)
            except TypeError as error:
                raise TypeError(f"{change.__name__}: {error}") from None
            bound.apply_defaults()
            cfg = _called(parent, bound.arguments)
            grouped = {group.__name__: _called(group, bound.arguments) for group in groups}
            change(cfg, **{p.name: bound.arguments[p.name] for p in own}, **grouped)
            return cfg

        vars(make)["__signature__"] = signature
        make.__annotations__ = {name: p.annotation for name, p in parameters.items()}
        make.__annotations__["return"] = signature.return_annotation
        return make

    return wrap


def _called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Return the result of a function for those of the arguments that it takes."""
    return function(**{name: arguments[name] for name in inspect.signature(function).parameters})


def _with_default(parameter: inspect.Parameter, defaults: dict[str, Any]) -> inspect.Parameter:
    return parameter.replace(default=defaults.get(parameter.name, parameter.default))

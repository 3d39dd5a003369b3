"""Modules whose subclasses inherit the arguments of constructors."""

import inspect
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, cast, dataclass_transform

from torch import nn

M = TypeVar("M", bound="FieldModule")


class ExtensibleModule(nn.Module):
    """A module whose subclasses inherit the arguments that they pass on as `**arguments`.

    Their signature then has the arguments of the class above them too, so that a graph sets and
    inherits both: `def __init__(self, *, clip: float, **arguments): ...`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        above, init = cast(Any, super(cls, cls).__init__), vars(cls).get("__init__")
        own = {} if init is None else dict(inspect.signature(init).parameters)
        passed = [name for name, argument in own.items() if argument.kind is argument.VAR_KEYWORD]
        if init is None or not passed:
            return
        del own[passed[0]]
        inherited = {
            name: argument
            for name, argument in inspect.signature(above).parameters.items()
            if argument.kind is argument.KEYWORD_ONLY and name not in own
        }
        init.__signature__ = inspect.Signature([*own.values(), *inherited.values()])
        hints = {name: hint for name, hint in above.__annotations__.items() if name in inherited}
        init.__annotations__ = {**init.__annotations__, **hints}


class FieldModule(ExtensibleModule):
    """A module that is prepared before its first attribute is set; see `field_module`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return an empty module, as the constructor of a dataclass calls none of its bases."""
        module = super().__new__(cls)
        nn.Module.__init__(module)
        return module


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
def field_module(cls: type[M]) -> type[M]:
    """Make a dataclass of keyword arguments of a module, which inherits fields of its bases."""
    made = dataclass(eq=False, kw_only=True, repr=False)(cls)
    for argument in fields(cast(Any, made)):
        if argument.name in vars(made):
            # A default of the class would hide a module or parameter of the instance.
            delattr(made, argument.name)
    return made

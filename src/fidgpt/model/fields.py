"""Modules whose constructor arguments are their attributes."""

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, cast, dataclass_transform

from torch import nn

M = TypeVar("M", bound="FieldModule")


class FieldModule(nn.Module):
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

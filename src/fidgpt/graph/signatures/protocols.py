"""What a Protocol asks for: methods, which a class has before there is any instance of it."""

import inspect
from typing import Any


def is_protocol(hint: Any) -> bool:
    """Whether a hint is a Protocol; of an object not yet built only its methods can be asked."""
    return getattr(hint, "_is_protocol", False)


def methods_of(protocol: Any) -> dict[str, Any]:
    """The methods that a Protocol asks for, by name."""
    return {
        name: member
        for one in reversed(protocol.__mro__)
        if is_protocol(one)
        for name, member in vars(one).items()
        if inspect.isfunction(member) and (name == "__call__" or name[0] != "_")
    }


def own_method(kind: type, name: str) -> Any:
    """A method as a class has it, None where it has none; a torch module is called by `forward`."""
    own = next((vars(one)[name] for one in kind.__mro__ if name in vars(one)), None)
    is_torchs = name == "__call__" and getattr(own, "__module__", "").startswith("torch.nn.")
    return own_method(kind, "forward") if is_torchs else own


def may_have(kind: type, name: str) -> bool:
    """Whether instances of a class have an attribute, of the class or set by its constructor."""
    # `hasattr` would find what the class has for itself alone, too.
    return any(name in vars(one) for one in kind.__mro__) or _sets(kind, name)


def _sets(kind: type, name: str) -> bool:
    """Whether a constructor of a class gives its instances an attribute."""
    codes = [getattr(vars(one).get("__init__"), "__code__", None) for one in kind.__mro__]
    is_declared = any(name in vars(one).get("__annotations__", {}) for one in kind.__mro__)
    return is_declared or any(name in code.co_names + code.co_consts for code in codes if code)

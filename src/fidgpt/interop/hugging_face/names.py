"""One name for a tensor, whichever class of transformers saved it."""

from collections.abc import Callable

_OF_BARE_MODELS = ("transformer.", "model.")  # what a model has before it where a head is beside
_OF_TEXT = (("model.language_model.", "model."), ("language_model.", ""))  # where an eye is beside


def known_name(name: str, is_known: Callable[[str], bool]) -> str:
    """The name that is known, of a tensor saved from a bare model or from one of text and images.

    A name that is known, or is not known in any way, stays as it is.
    """
    candidates = [prefix + name for prefix in _OF_BARE_MODELS]
    candidates += [name.replace(old, new, 1) for old, new in _OF_TEXT if name.startswith(old)]
    return next((one for one in [name, *candidates] if is_known(one)), name)

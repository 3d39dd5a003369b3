"""Which parameter is what, by its name and its shape: what rules of parameter groups ask."""

import re
from typing import Protocol, runtime_checkable

from torch import nn

_TABLES = re.compile(r"(?:^|\.)\w*embedding\.")


@runtime_checkable
class Predicate(Protocol):
    """Whether a rule is about a parameter."""

    def __call__(self, name: str, parameter: nn.Parameter, /) -> bool: ...


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Two dimensions or more, and no bias: those of experts are one matrix, and biases still."""
    return parameter.dim() >= 2 and not name.endswith("bias")


def is_vector(name: str, parameter: nn.Parameter) -> bool:
    """What is no matrix: norms, biases, sinks."""
    return not is_matrix(name, parameter)


def is_table(name: str, parameter: nn.Parameter) -> bool:
    """A matrix that tokens or positions are looked up in, or that scores tokens."""
    return is_matrix(name, parameter) and _TABLES.search(name) is not None


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """A matrix between two layers of a model: any that is no table."""
    return is_matrix(name, parameter) and not is_table(name, parameter)


class ByName:
    """Parameters in whose name a pattern is found, such as `attention[.](query|key)`.

    Args:
      pattern: a regular expression.

    Raises:
      ValueError: it is none.
    """

    def __init__(self, pattern: str) -> None:
        self.check_arguments(pattern=pattern)
        self.pattern = pattern

    @staticmethod
    def check_arguments(*, pattern: str) -> None:
        """Raises ValueError unless the pattern is a regular expression."""
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern=} is no regular expression: {error}.") from None

    def __call__(self, name: str, parameter: nn.Parameter) -> bool:
        return re.search(self.pattern, name) is not None


def train_only(model: nn.Module, trainable: Predicate | None) -> None:
    """Lets those parameters learn for which it is so, and no others; None changes nothing."""
    if trainable is None:
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable(name, parameter))

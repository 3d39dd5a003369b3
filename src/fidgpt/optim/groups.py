"""Parameter groups."""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from torch import nn

from fidgpt.ranges import require_not_negative

__all__ = [
    "ByName",
    "Predicate",
    "decay_matrices",
    "is_hidden_matrix",
    "is_matrix",
    "is_table",
    "is_vector",
    "mup_groups",
    "split_hidden_matrices",
]


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
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern=} is no regular expression: {error}.") from None
        self.pattern = pattern

    def __call__(self, name: str, parameter: nn.Parameter) -> bool:
        return re.search(self.pattern, name) is not None


def train_only(model: nn.Module, trainable: Predicate | None) -> None:
    """Lets those parameters learn for which it is so, and no others; None changes nothing."""
    if trainable is None:
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable(name, parameter))


Grouping = Callable[[nn.Module], list[dict[str, Any]]]
"""Deals the parameters of a model into groups, as optimizers take them."""


def decay_matrices(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups: matrices, which decay as the optimizer says, and vectors, which do not.

    Norms and biases set scales and offsets that decay would only distort (Radford et al., 2019,
    trained GPT-2 so). A parameter that several modules hold is in one group once.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decays = {id(p) for name, p in trained if is_matrix(name, p)}
    matrices = [p for _, p in trained if id(p) in decays]
    vectors = [p for _, p in trained if id(p) not in decays]
    groups = [_group("matrices", matrices), {**_group("vectors", vectors), "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def mup_groups(model: nn.Module, *, base_dim: int) -> list[dict[str, Any]]:
    """`decay_matrices`, with a learning rate of base_dim / width for hidden matrices.

    So a rate that is good at a width of `base_dim` is good at any (maximal update parametrisation
    under Adam; Yang et al., 2022, arXiv:2203.03466, table 8). The tables of tokens and positions
    learn at the rate of vectors.

    Args:
      model: a decoder; what is not in its `embedding` or `unembedding` is hidden.
      base_dim: width at which the learning rate was tuned.

    Raises:
      ValueError: that width is below 1.
    """
    if base_dim < 1:
        raise ValueError(f"{base_dim=} is no width: use 1 or more.")
    width = model.get_parameter("embedding.weight").shape[1]
    outside = [
        parameter
        for name in ("embedding", "unembedding")
        for parameter in model.get_submodule(name).parameters()
    ]
    tables = {id(parameter) for parameter in outside}
    hidden = {
        id(p) for name, p in model.named_parameters() if is_matrix(name, p) and id(p) not in tables
    }
    return _apart(decay_matrices(model), hidden, settings={}, lr_scale=base_dim / width)


def split_hidden_matrices(
    model: nn.Module,
    *,
    groups: Grouping = decay_matrices,
    match: Predicate = is_hidden_matrix,
    lr_scale: float = 1.0,
) -> list[dict[str, Any]]:
    """Other groups, in which the matrices that Muon steps are `orthogonal` groups of their own.

    Args:
      model: what is trained.
      groups: deals the parameters first; each group keeps its settings.
      match: which parameters Muon steps.
      lr_scale: their learning rate, as a multiple of what it would be.

    Raises:
      ValueError: the multiple is negative, or infinite.
    """
    require_not_negative("lr_scale", lr_scale)
    chosen = {id(p) for name, p in model.named_parameters() if match(name, p)}
    return _apart(groups(model), chosen, settings={"orthogonal": True}, lr_scale=lr_scale)


def _apart(
    groups: Iterable[Mapping[str, Any]],
    chosen: Container[int],
    *,
    settings: Mapping[str, Any],
    lr_scale: float,
) -> list[dict[str, Any]]:
    """The groups, each in two where some of its parameters are chosen, which are hidden ones.

    Args:
      groups: as they are dealt; each keeps its settings.
      chosen: ids of parameters.
      settings: what is so for those besides.
      lr_scale: their learning rate, as a multiple of what it would be.
    """
    found = []
    for group in groups:
        hidden = [p for p in group["params"] if id(p) in chosen]
        if others := [p for p in group["params"] if id(p) not in chosen]:
            found.append({**group, "params": others})
        if hidden:
            name = group.get("name", "")
            name = name if name.startswith("hidden") else f"hidden {name}".rstrip()
            own = {**group, **settings, "name": name, "params": hidden}
            if lr_scale != 1:
                own["lr_scale"] = group.get("lr_scale", 1.0) * lr_scale
            found.append(own)
    return found


def _group(name: str, parameters: list[nn.Parameter]) -> dict[str, Any]:
    return {"name": name, "params": parameters}


def require_rates(*, lr: float, weight_decay: float) -> None:
    """Raises ValueError unless both are finite and 0 or more."""
    require_not_negative("lr", lr)
    require_not_negative("weight_decay", weight_decay)


def require_adam(*, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    """Raises ValueError unless these are numbers that Adam can step with."""
    require_rates(lr=lr, weight_decay=weight_decay)
    require_betas(betas)
    require_not_negative("eps", eps)


def require_betas(betas: tuple[float, float]) -> None:
    """Raises ValueError unless each is from 0 to below 1."""
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"{betas=} must be from 0 to less than 1.")

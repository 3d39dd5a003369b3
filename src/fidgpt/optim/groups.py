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
    """Selects parameters by name and value."""

    def __call__(self, name: str, parameter: nn.Parameter, /) -> bool: ...


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter has two or more dimensions and is no bias of experts."""
    return parameter.dim() >= 2 and not name.endswith("bias")


def is_vector(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a norm's scale, a bias or a sink: anything but a matrix."""
    return not is_matrix(name, parameter)


def is_table(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a table of token or position embeddings, or the unembedding."""
    return is_matrix(name, parameter) and _TABLES.search(name) is not None


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a matrix other than an embedding table."""
    return is_matrix(name, parameter) and not is_table(name, parameter)


class ByName:
    """Selects parameters whose name contains a pattern, such as `attention[.](query|key)`.

    Args:
      pattern: a regular expression.

    Raises:
      ValueError: it is not valid.
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
    """Set `requires_grad` of the selected parameters and unset all others; None: no change."""
    if trainable is None:
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable(name, parameter))


Grouping = Callable[[nn.Module], list[dict[str, Any]]]
"""Splits the parameters of a model into optimizer parameter groups."""


def decay_matrices(model: nn.Module) -> list[dict[str, Any]]:
    """Return two groups: matrices, with the optimizer's weight decay, and vectors without any.

    Weight decay would only distort the scales and offsets of norms and biases. Shared parameters
    are listed once.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decays = {id(p) for name, p in trained if is_matrix(name, p)}
    matrices = [p for _, p in trained if id(p) in decays]
    vectors = [p for _, p in trained if id(p) not in decays]
    groups = [_group("matrices", matrices), {**_group("vectors", vectors), "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def mup_groups(model: nn.Module, *, base_dim: int) -> list[dict[str, Any]]:
    """Return `decay_matrices` with a learning rate of lr * base_dim / width for hidden matrices.

    A learning rate tuned at width `base_dim` then transfers to any width (maximal update
    parametrization under Adam; Yang et al., 2022, arXiv:2203.03466, table 8). Embedding tables keep
    the learning rate of vectors.

    Args:
      model: a decoder; matrices outside its `embedding` and `unembedding` are hidden.
      base_dim: width at which the learning rate was tuned.

    Raises:
      ValueError: base_dim is below 1.
    """
    if base_dim < 1:
        raise ValueError(f"{base_dim=} must be 1 or more.")
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
    return _split(decay_matrices(model), hidden, settings={}, lr_scale=base_dim / width)


def split_hidden_matrices(
    model: nn.Module,
    *,
    groups: Grouping = decay_matrices,
    match: Predicate = is_hidden_matrix,
    lr_scale: float = 1.0,
) -> list[dict[str, Any]]:
    """Move the matrices that Muon optimizes into `orthogonal` groups of their own.

    Args:
      model: the model to train.
      groups: makes the groups to split, whose settings are kept.
      match: selects the parameters for Muon.
      lr_scale: multiplies their learning rate.

    Raises:
      ValueError: lr_scale is negative or not finite.
    """
    require_not_negative("lr_scale", lr_scale)
    chosen = {id(p) for name, p in model.named_parameters() if match(name, p)}
    return _split(groups(model), chosen, settings={"orthogonal": True}, lr_scale=lr_scale)


def _split(
    groups: Iterable[Mapping[str, Any]],
    chosen: Container[int],
    *,
    settings: Mapping[str, Any],
    lr_scale: float,
) -> list[dict[str, Any]]:
    """Split each group in two where some of its parameters are chosen.

    Args:
      groups: parameter groups, whose settings are kept.
      chosen: ids of parameters, all hidden matrices.
      settings: further settings of the chosen ones.
      lr_scale: multiplies their learning rate.
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
    """Raise ValueError unless both are finite and 0 or more."""
    require_not_negative("lr", lr)
    require_not_negative("weight_decay", weight_decay)


def require_adam(*, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    """Raise ValueError unless these are valid settings of Adam."""
    require_rates(lr=lr, weight_decay=weight_decay)
    require_betas(betas)
    require_not_negative("eps", eps)


def require_betas(betas: tuple[float, float]) -> None:
    """Raise ValueError unless each is from 0 to less than 1."""
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"{betas=} must be from 0 to less than 1.")

"""Which parameters an optimizer treats alike."""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from torch import nn

from fidgpt.optim.predicates import Predicate, is_hidden_matrix, is_matrix
from fidgpt.ranges import require_not_negative

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

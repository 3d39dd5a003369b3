"""Which parameters an optimizer treats alike."""

from typing import Any

from torch import nn


def decay_matrices(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups: matrices, which decay as the optimizer says, and vectors, which do not.

    Norms and biases set scales and offsets that decay would only distort (Radford et al., 2019,
    trained GPT-2 so). A parameter that several modules hold is in one group once.
    """
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    groups = [_group("matrices", matrices), {**_group("vectors", vectors), "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _group(name: str, parameters: list[nn.Parameter]) -> dict[str, Any]:
    return {"name": name, "params": parameters}

"""Plain MLPs with the activation that config.json names."""

from collections.abc import Mapping

import fiddle as fdl
from torch.nn import functional as F

from fidgpt.fiddlers import use_gelu
from fidgpt.graph import find, swap_all
from fidgpt.model import GELU, MLP, Activation, gelu, gelu_tanh
from fidgpt.train import Trainer

# By their names in config.json; a function may have several names.
ACTIVATIONS: Mapping[str, Activation] = {
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), gelu_tanh),
    **{"gelu": gelu, "relu": F.relu, "silu": F.silu},
}


def activate(cfg: fdl.Config[Trainer], activation: str) -> None:
    """Use plain MLPs with an activation by its name in config.json.

    Raises:
      ValueError: it is unknown.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"{activation=} is unknown; use {', '.join(ACTIVATIONS)}.")
    use_gelu(cfg)
    if ACTIVATIONS[activation] is not gelu_tanh:
        swap_all(cfg.model, GELU, by=MLP)
        for mlp in find(cfg.model, MLP):
            mlp.activation = ACTIVATIONS[activation]

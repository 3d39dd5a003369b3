"""Which optimizer a run has, and how parameters are dealt to it."""

from collections.abc import Callable, Collection

import fiddle as fdl
import torch

from fidgpt.graph import swapped
from fidgpt.graph.fiddle import set_arguments
from fidgpt.optim import (
    Adafactor,
    LayerDecay,
    Lion,
    Muon,
    ParameterGroups,
    Rule,
    adamw,
    is_matrix,
    is_vector,
    split_hidden_matrices,
)
from fidgpt.tags import LearningRate, WeightDecay
from fidgpt.train import Trainer

_QUANTITIES = ("lr", "weight_decay")
_OF_ADAMW = (*_QUANTITIES, "betas", "eps")


def use_adamw(cfg: fdl.Config[Trainer], learning_rate: float | None = None) -> None:
    """Learns by AdamW, at the learning rate that there is unless one is given."""
    _use(cfg, adamw, keep=_OF_ADAMW, learning_rate=learning_rate)
    _deal_plainly(cfg)


def use_muon(
    cfg: fdl.Config[Trainer], learning_rate: float | None = None, matrix_scale: float = 1.0
) -> None:
    """Matrices inside the model learn by Muon, everything else by AdamW.

    Steps of both are as large at one learning rate, so that AdamW's serves.

    Args:
      cfg: the graph to change.
      learning_rate: the one that there is unless given.
      matrix_scale: learning rate of the matrices, as a multiple of the others'.
    """
    _use(cfg, Muon, keep=_OF_ADAMW, learning_rate=learning_rate)
    if not _is_split(cfg):
        groups = fdl.Partial(split_hidden_matrices)
        if "groups" in set_arguments(cfg):
            groups.groups = cfg.groups
        cfg.groups = groups
    cfg.groups.lr_scale = matrix_scale


def use_lion(
    cfg: fdl.Config[Trainer], learning_rate: float | None = None, weight_decay: float | None = None
) -> None:
    """Learns by Lion, which needs less memory than AdamW.

    Args:
      cfg: the graph to change.
      learning_rate: a third to a tenth of AdamW's is advised; the one that there is unless given.
      weight_decay: as many times more; the one that there is unless given.
    """
    _use(cfg, Lion, keep=_QUANTITIES, learning_rate=learning_rate)
    if weight_decay is not None:
        cfg.optimizer.weight_decay = weight_decay
    _deal_plainly(cfg)


def use_sgd(
    cfg: fdl.Config[Trainer], learning_rate: float | None = None, momentum: float = 0.9
) -> None:
    """Learns by stochastic gradient descent with momentum.

    Its weight decay is added to the gradient, so that momentum multiplies it.

    Args:
      cfg: the graph to change.
      learning_rate: 10 to 100 times AdamW's is usual; the one that there is unless given.
      momentum: share of the last step that the next one keeps.
    """
    _use(cfg, torch.optim.SGD, keep=_QUANTITIES, learning_rate=learning_rate)
    cfg.optimizer.momentum = momentum
    _deal_plainly(cfg)


def use_adafactor(cfg: fdl.Config[Trainer], learning_rate: float | None = None) -> None:
    """Learns by Adafactor, which remembers a row and a column for each matrix.

    Args:
      cfg: the graph to change.
      learning_rate: of a parameter's own size, at most 1 / sqrt(steps so far); 0.01 is torch's. The
        one that there is unless given.
    """
    _use(cfg, Adafactor, keep=_QUANTITIES, learning_rate=learning_rate)
    _deal_plainly(cfg)


def use_layer_decay(cfg: fdl.Config[Trainer], factor: float = 0.9) -> None:
    """Every layer learns slower than the next one, and the embedding slowest.

    Args:
      cfg: the graph to change.
      factor: from one layer's learning rate to that of the layer below.
    """
    by_layer = fdl.Config(LayerDecay, factor)
    rules = [
        fdl.Config(Rule, "matrices", match=is_matrix, lr_scale=by_layer),
        fdl.Config(Rule, "vectors", match=is_vector, lr_scale=by_layer, weight_decay=0.0),
    ]
    deal(cfg, fdl.Config(ParameterGroups, rules))


def deal(cfg: fdl.Config[Trainer], groups: fdl.Buildable) -> None:
    """Deals parameters by `groups`, split further for Muon where they are split."""
    if _is_split(cfg):
        cfg.groups.groups = groups
    else:
        cfg.groups = groups


def _use(
    cfg: fdl.Config[Trainer],
    function: Callable[..., torch.optim.Optimizer],
    *,
    keep: Collection[str],
    learning_rate: float | None,
) -> None:
    """Puts an optimizer in place, which keeps of the last one what it understands as well."""
    if fdl.get_callable(cfg.optimizer) is not function:
        new = swapped(cfg.optimizer, function)
        for key in set_arguments(new).keys() - keep:
            delattr(new, str(key))
        fdl.add_tag(new, "lr", LearningRate)
        fdl.add_tag(new, "weight_decay", WeightDecay)
        cfg.optimizer = new
    if learning_rate is not None:
        cfg.optimizer.lr = learning_rate


def _is_split(cfg: fdl.Config[Trainer]) -> bool:
    groups = set_arguments(cfg).get("groups")
    return isinstance(groups, fdl.Buildable) and fdl.get_callable(groups) is split_hidden_matrices


def _deal_plainly(cfg: fdl.Config[Trainer]) -> None:
    """Takes back what `use_muon` did to the groups."""
    if not _is_split(cfg):
        return
    if "groups" in set_arguments(cfg.groups):
        cfg.groups = cfg.groups.groups
    else:
        del cfg.groups

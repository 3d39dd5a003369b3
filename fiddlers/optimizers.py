"""Optimizers and parameter groups."""

from collections.abc import Callable, Collection

import fiddle as fdl
import torch

from fidgpt.graph import ConfigError, swapped
from fidgpt.graph.fiddle import parameter_names, set_arguments
from fidgpt.optim import (
    Adafactor,
    LayerDecay,
    Lion,
    Muon,
    NorMuon,
    ParameterGroups,
    Rule,
    ScheduleFreeAdamW,
    adamw,
    ademamix,
    decay_matrices,
    is_matrix,
    is_vector,
    mup_groups,
    split_hidden_matrices,
)
from fidgpt.tags import LearningRate, NumSteps, WeightDecay
from fidgpt.train import Trainer

__all__ = [
    "use_adafactor",
    "use_adamw",
    "use_ademamix",
    "use_layer_decay",
    "use_lion",
    "use_muon",
    "use_normuon",
    "use_schedule_free",
    "use_sgd",
]

_QUANTITIES = ("lr", "weight_decay")
_OF_ADAMW = (*_QUANTITIES, "betas", "eps")


def use_adamw(cfg: fdl.Config[Trainer], learning_rate: float | None = None) -> None:
    """Use AdamW, with the current learning rate by default."""
    _use(cfg, adamw, keep=_OF_ADAMW, learning_rate=learning_rate)
    _undo_muon_groups(cfg)


def use_ademamix(cfg: fdl.Config[Trainer], learning_rate: float | None = None) -> None:
    """Use AdEMAMix, AdamW with a slow mean of the gradient, whose weight rises over the run.

    Args:
      cfg: the graph to change.
      learning_rate: defaults to the current one, as AdamW's fits.
    """
    _use(cfg, ademamix, keep=(*_QUANTITIES, "eps"), learning_rate=learning_rate)
    cfg.optimizer.warmup_steps = NumSteps.new()
    _undo_muon_groups(cfg)


def use_muon(
    cfg: fdl.Config[Trainer], learning_rate: float | None = None, matrix_scale: float = 1.0
) -> None:
    """Use Muon for hidden matrices, and AdamW for everything else.

    Updates of both have the same size at equal learning rates, so AdamW's can be kept.

    Args:
      cfg: the graph to change.
      learning_rate: defaults to the current one.
      matrix_scale: learning rate of the matrices relative to the others.
    """
    _use(cfg, Muon, keep=_OF_ADAMW, learning_rate=learning_rate)
    _split_groups(cfg, matrix_scale)


def use_normuon(
    cfg: fdl.Config[Trainer], learning_rate: float | None = None, matrix_scale: float = 1.0
) -> None:
    """Use NorMuon with Polar Express and cautious decay for hidden matrices, AdamW for the rest.

    Args:
      cfg: the graph to change.
      learning_rate: as in `use_muon`.
      matrix_scale: as in `use_muon`.
    """
    _use(cfg, NorMuon, keep=_OF_ADAMW, learning_rate=learning_rate)
    _split_groups(cfg, matrix_scale)


def use_lion(
    cfg: fdl.Config[Trainer], learning_rate: float | None = None, weight_decay: float | None = None
) -> None:
    """Use Lion, which needs less memory than AdamW.

    Args:
      cfg: the graph to change.
      learning_rate: a third to a tenth of AdamW's is advised; defaults to the current one.
      weight_decay: 3 to 10 times AdamW's is advised; defaults to the current one.
    """
    _use(cfg, Lion, keep=_QUANTITIES, learning_rate=learning_rate)
    if weight_decay is not None:
        cfg.optimizer.weight_decay = weight_decay
    _undo_muon_groups(cfg)


def use_sgd(
    cfg: fdl.Config[Trainer], learning_rate: float | None = None, momentum: float = 0.9
) -> None:
    """Use stochastic gradient descent with momentum.

    Weight decay is added to the gradient, so momentum multiplies it.

    Args:
      cfg: the graph to change.
      learning_rate: 10 to 100 times AdamW's is usual; defaults to the current one.
      momentum: decay rate of the momentum.
    """
    _use(cfg, torch.optim.SGD, keep=_QUANTITIES, learning_rate=learning_rate)
    cfg.optimizer.momentum = momentum
    _undo_muon_groups(cfg)


def use_adafactor(cfg: fdl.Config[Trainer], learning_rate: float | None = None) -> None:
    """Use Adafactor, whose second moments are a row and a column per matrix.

    Args:
      cfg: the graph to change.
      learning_rate: relative to a parameter's size, at most 1 / sqrt(steps so far); 0.01 in torch.
        Defaults to the current one.
    """
    _use(cfg, Adafactor, keep=_QUANTITIES, learning_rate=learning_rate)
    _undo_muon_groups(cfg)


def use_schedule_free(cfg: fdl.Config[Trainer], learning_rate: float | None = None) -> None:
    """Use schedule-free AdamW, which averages weights in place of a decay of the learning rate.

    Combine it with `use_constant`, since this keeps the schedule. Evaluation, samples, checkpoints
    and exports use the averaged weights.

    Args:
      cfg: the graph to change.
      learning_rate: AdamW's to 10 times that is advised; defaults to the current one.
    """
    _use(cfg, ScheduleFreeAdamW, keep=_OF_ADAMW, learning_rate=learning_rate)
    _undo_muon_groups(cfg)


def use_layer_decay(cfg: fdl.Config[Trainer], factor: float = 0.9) -> None:
    """Decay the learning rate from layer to layer, down to the embedding.

    Args:
      cfg: the graph to change.
      factor: ratio of a layer's learning rate to the next layer's rate.
    """
    by_layer = fdl.Config(LayerDecay, factor)
    rules = [
        fdl.Config(Rule, "matrices", match=is_matrix, lr_scale=by_layer),
        fdl.Config(Rule, "vectors", match=is_vector, lr_scale=by_layer, weight_decay=0.0),
    ]
    set_groups(cfg, fdl.Config(ParameterGroups, rules))


def set_groups(cfg: fdl.Config[Trainer], groups: fdl.Buildable) -> None:
    """Set the parameter groups, and split them for Muon if the current ones are split.

    Raises:
      ConfigError: one of the old and the new groups is muP's, and the other is not the default.
    """
    now = set_arguments(cfg).get("groups")
    if _is_split(cfg):
        now = set_arguments(cfg.groups).get("groups")
    kinds = [fdl.get_callable(part) for part in (now, groups) if isinstance(part, fdl.Buildable)]
    if len({*kinds, decay_matrices}) > 2 and mup_groups in kinds:
        names = " and ".join(kind.__name__ for kind in kinds)
        raise ConfigError(
            f"{names} both set the learning rate of each group of parameters: remove use_mup, or "
            "what sets the other groups."
        )
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
    """Replace the optimizer, keeping settings that the new one also has, and their schedules."""
    if fdl.get_callable(cfg.optimizer) is not function:
        new = swapped(cfg.optimizer, function)
        for key in set_arguments(new).keys() - keep:
            delattr(new, str(key))
        fdl.add_tag(new, "lr", LearningRate)
        fdl.add_tag(new, "weight_decay", WeightDecay)
        cfg.optimizer = new
        schedules, known = set_arguments(cfg).get("schedules"), parameter_names(new)
        if schedules:
            cfg.schedules = {name: schedules[name] for name in schedules if name in known}
    if learning_rate is not None:
        cfg.optimizer.lr = learning_rate


def _split_groups(cfg: fdl.Config[Trainer], matrix_scale: float) -> None:
    """Give hidden matrices groups of their own."""
    if not _is_split(cfg):
        groups = fdl.Partial(split_hidden_matrices)
        if "groups" in set_arguments(cfg):
            groups.groups = cfg.groups
        cfg.groups = groups
    cfg.groups.lr_scale = matrix_scale


def _is_split(cfg: fdl.Config[Trainer]) -> bool:
    groups = set_arguments(cfg).get("groups")
    return isinstance(groups, fdl.Buildable) and fdl.get_callable(groups) is split_hidden_matrices


def _undo_muon_groups(cfg: fdl.Config[Trainer]) -> None:
    """Undo the change of `use_muon` to the groups."""
    if not _is_split(cfg):
        return
    if "groups" in set_arguments(cfg.groups):
        cfg.groups = cfg.groups.groups
    else:
        del cfg.groups

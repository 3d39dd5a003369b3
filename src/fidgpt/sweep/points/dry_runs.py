"""Dry runs of points: checked and bound, their models built without memory, each model once."""

from dataclasses import dataclass
from typing import Any

import fiddle as fdl
import torch

from fidgpt.cli.running.constraints import CONSTRAINTS
from fidgpt.cli.running.runs import build_trainer
from fidgpt.graph import ConfigError, bind, checked
from fidgpt.graph.checking.resembling import Resembling
from fidgpt.graph.storage.fingerprint import Hashes
from fidgpt.graph.storage.merkle import Merkle, Table
from fidgpt.graph.storage.order import Order
from fidgpt.graph.structure.clone import copy_part
from fidgpt.model.cost import TRAINING_PASSES, count_parameters, flops_per_token
from fidgpt.train import Trainer
from fidgpt.train.facts.gathering import measured_flops


@dataclass(frozen=True)
class Cost:
    """What a point asks of a machine.

    Attributes:
      parameters: of the model.
      flops: of the whole run, forward and backward.
      num_steps: optimizer steps.
    """

    parameters: int
    flops: int
    num_steps: int


@dataclass(frozen=True)
class _Known:
    model: Any
    parameters: int
    flops_per_token: int


class DryRuns:
    """One point after another; the model that several of them have in common is built once."""

    def __init__(self) -> None:
        self._models: dict[tuple[int, int], _Known] = {}
        self._table = Table()
        self._hashes = Hashes(self._table)
        self._resembling = Resembling(CONSTRAINTS)

    def of(self, cfg: fdl.Config) -> tuple[str, Cost, fdl.Config]:
        """The fingerprint of a point that can be trained, what it costs, and its bound graph.

        Raises:
          ConfigError, StartError: it cannot; the message says why.
        """
        identity, merkle = self._checked(cfg)
        bound = merkle.order.root
        model, seq_len = getattr(bound, "model", None), getattr(bound, "seq_len", None)
        if isinstance(model, fdl.Buildable) and isinstance(seq_len, int):
            tried = self._known(cfg, (merkle.number(model), seq_len))
            trainer = _around(tried.model, bound) or build_trainer(cfg)
        else:
            trainer = build_trainer(cfg)
            tried = _counted(trainer)
        flops = tried.flops_per_token * trainer.num_steps * trainer.batch_size * trainer.seq_len
        cost = Cost(tried.parameters, flops, trainer.num_steps)
        return identity, cost, bound

    def _checked(self, cfg: fdl.Config) -> tuple[str, Merkle]:
        """The fingerprint of a graph that is right, and the numbers of the bound graph."""
        try:
            bound = bind(cfg)
            merkle = Merkle(Order(bound), self._table)
            identity = self._hashes.of_root(merkle)
            is_right = self._resembling.is_right(bound, merkle)
        except ConfigError:
            checked(cfg, constraints=CONSTRAINTS)  # which tells of every mistake
            raise
        if not is_right:
            checked(cfg, constraints=CONSTRAINTS)
        return identity, merkle

    def _known(self, cfg: fdl.Config, key: tuple[int, int]) -> _Known:
        if key not in self._models:
            self._models[key] = _counted(build_trainer(cfg))
        return self._models[key]


def _counted(trainer: Trainer) -> _Known:
    model, seq_len = trainer.model, trainer.seq_len
    unsaid = measured_flops(model, seq_len=seq_len) or {}
    forward = flops_per_token(model, seq_len=seq_len) + sum(unsaid.values())
    return _Known(model, count_parameters(model).total, TRAINING_PASSES * forward)


def _around(model: Any, bound: fdl.Config) -> Trainer | None:
    """The rest of a trainer built around a model that is known; None where that fails."""
    rest = copy_part(bound, {**bound.__arguments__, "model": model})
    try:
        with torch.device("meta"):
            built = fdl.build(rest)
    except Exception:  # the whole is built then, which says what is wrong and where
        return None
    return built if isinstance(built, Trainer) else None

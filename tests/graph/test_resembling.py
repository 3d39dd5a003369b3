"""Graphs that resemble one that was right are found right, or wrong, as if looked at anew."""

from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers, model
from fidgpt.graph import ConfigError, bind, checked
from fidgpt.graph.storage.bound import BoundGraph
from fidgpt.graph.unused import Resembling


def positive_seed(cfg: fdl.Config) -> None:
    if cfg.seed < 0:
        raise ValueError("seed is negative")


class Known:
    """One graph that was right, and what is found of others after it."""

    def __init__(self) -> None:
        self.resembling = Resembling([positive_seed])
        assert self.is_right(configs.base())

    def is_right(self, root: Any) -> bool:
        return self.resembling.is_right(BoundGraph(bind(root)))


@pytest.fixture(scope="module")
def known() -> Known:
    return Known()


def build_block_once(cfg: Any) -> None:
    """A factory that was right in a Partial, in a Config."""
    block = cfg.model.blocks[0]
    cfg.model.blocks[0] = fdl.Config(model.Block, **block.__arguments__)


def call_attention_later(cfg: Any) -> None:
    cfg.model.norm = fdl.Partial(model.RMSNorm)


WRONG: list[Callable[[Any], None]] = [
    lambda cfg: setattr(cfg, "num_steps", "many"),
    lambda cfg: setattr(cfg, "seed", -1),
    lambda cfg: setattr(cfg.model.blocks[0].attention, "head_dim", 7),
    lambda cfg: setattr(cfg.model, "norm", cfg.optimizer),
    lambda cfg: setattr(cfg, "trackers", {1.5: 2}),
    build_block_once,
    call_attention_later,
]
RIGHT: list[Callable[[Any], None]] = [
    lambda cfg: setattr(cfg, "num_steps", 7),
    lambda cfg: setattr(cfg.model.blocks[0].attention, "head_dim", 32),
    fiddlers.use_gelu,
    fiddlers.unroll,
    lambda cfg: None,
]


@pytest.mark.parametrize("change", WRONG + RIGHT)
def test_it_finds_what_a_look_at_all_of_it_finds(
    known: Known, change: Callable[[Any], None]
) -> None:
    cfg = configs.base()
    change(cfg)
    try:
        checked(cfg, constraints=[positive_seed])
    except ConfigError:
        assert change in WRONG
        assert not known.is_right(cfg)
        assert not known.is_right(cfg)  # nor when it comes again
    else:
        assert change in RIGHT
        assert known.is_right(cfg)

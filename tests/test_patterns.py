"""How the pattern of blocks gets as many entries as there are kinds of layers to change."""

from typing import Any

import fiddle as fdl
import pytest
import torch

from fidgpt import configs
from fidgpt.fiddlers import unroll, use_moe, use_sliding_window
from fidgpt.graph import ConfigError, bind, build, check
from fidgpt.model import SwiGLU


def layers(cfg: fdl.Config) -> Any:
    with torch.device("meta"):
        model: Any = build(bind(check(cfg))).model
    return model.blocks


def windows(cfg: fdl.Config) -> list[int | None]:
    return [block.attention.window for block in layers(cfg)]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_an_entry_stands_for_every_so_many_th_layer(every):
    cfg = configs.debug()
    unroll(cfg, every=every)
    assert len(cfg.model.blocks) == every
    cfg.model.blocks[-1].attention.window = 7
    cfg.model.num_layers = 6
    assert windows(cfg) == [7 if (i + 1) % every == 0 else None for i in range(6)]


def test_a_pattern_stays_what_it_is():
    cfg = configs.debug()
    cfg.model.num_layers = 12
    use_sliding_window(cfg, window=5, every=2)
    before = windows(cfg)
    unroll(cfg, every=3)
    assert len(cfg.model.blocks) == 6
    assert windows(cfg) == before


def test_first_blocks_stay_the_first():
    cfg = configs.debug()
    cfg.model.num_layers = 4
    use_moe(cfg, first_dense=1)
    unroll(cfg, every=2)
    assert [isinstance(block.mlp, SwiGLU) for block in layers(cfg)] == [True, False, False, False]


def test_a_pattern_has_an_entry_at_least():
    with pytest.raises(ConfigError, match="every=0 must be 1 or more"):
        unroll(configs.debug(), every=0)

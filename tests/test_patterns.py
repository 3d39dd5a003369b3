"""How the pattern of blocks gets as many entries as there are kinds of layers to change."""

from typing import Any

import fiddle as fdl
import pytest
import torch

from fidgpt import configs
from fidgpt.fiddlers import scale_depth, unroll, use_moe, use_recompute, use_sliding_window
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


@pytest.mark.parametrize(
    ("fiddler", "arguments"),
    [
        (unroll, {"every": 10**7}),
        (use_moe, {"every": 10**7}),
        (use_moe, {"first_dense": 10**7}),
        (use_recompute, {"every": 10**7}),
        (use_sliding_window, {"every": 10**7}),
    ],
)
def test_a_pattern_is_no_longer_than_any_model_is_deep(fiddler, arguments):
    with pytest.raises(ConfigError, match="10000000 blocks of their own are more than 100000"):
        fiddler(configs.debug(), **arguments)


def test_no_more_layers_are_unrolled_than_any_model_has():
    cfg = configs.debug()
    cfg.model.num_layers = 10**9
    with pytest.raises(ConfigError, match="1000000000 blocks of their own are more than 100000"):
        unroll(cfg)


def test_a_window_in_fewer_than_no_layers_is_refused():
    with pytest.raises(ConfigError, match="every=-1 must be 1 or more layers, or 0"):
        use_sliding_window(configs.debug(), every=-1)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_depth_grows_by_a_number_above_0(factor):
    with pytest.raises(ConfigError, match="must be above 0, and finite"):
        scale_depth(configs.debug(), factor=factor)

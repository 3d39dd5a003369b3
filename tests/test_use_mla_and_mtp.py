"""Latent attention and further predictions, put into configs by one line each."""

from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest
import torch

from fidgpt import configs, fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.fiddlers.heads import use_mtp
from fidgpt.fiddlers.latent import fit_rope, use_mla
from fidgpt.graph import ConfigError, fingerprint
from fidgpt.model import Attention, Block, RoPE, Transformer, eager, materialize
from fidgpt.model.mla import LatentAttention
from fidgpt.model.prediction import MultiTokenTransformer, TokenPrediction
from fidgpt.model.reports import collecting
from fidgpt.tags import HeadDim
from fidgpt.train.loss import NextToken

BOTH = [use_mla, use_mtp]
SOME = ["base", "gpt2_124m", "gemma3_1b"]  # one RoPE, none, and two over a pattern of six
OTHERS = ["make_large", "use_swiglu", "use_layer_norm", "use_moe", "use_lora", "unroll"]


def fiddled(config: str, *changes: Callable[[fdl.Config], None]) -> fdl.Config:
    cfg = getattr(configs, config)()
    for change in changes:
        change(cfg)
    return cfg


def built(cfg: fdl.Config) -> Transformer:
    model = build_trainer(cfg).model
    assert isinstance(model, Transformer)
    return model


def latent(model: Transformer) -> LatentAttention:
    """The attention of the first layer; all are alike in what is asked here."""
    attentions = [module for module in model.modules() if isinstance(module, LatentAttention)]
    assert not any(isinstance(module, Attention) for module in model.modules())
    assert len(attentions) == len(model.blocks)
    return attentions[0]


@pytest.mark.parametrize("change", BOTH)
@pytest.mark.parametrize("config", SOME)
def test_a_config_is_built_with_it_and_twice_is_once(config, change):
    once, twice = fiddled(config, change), fiddled(config, change, change)
    assert fingerprint(once) == fingerprint(twice) != fingerprint(fiddled(config))
    assert all(parameter.is_meta for parameter in built(once).parameters())


@pytest.mark.parametrize("change", BOTH)
@pytest.mark.parametrize("other", OTHERS)
def test_the_order_does_not_matter(other, change):
    there = fiddled("base", change, getattr(fiddlers, other))
    back = fiddled("base", getattr(fiddlers, other), change)
    assert fingerprint(there) == fingerprint(back)
    assert fingerprint(fiddled("base", *BOTH)) == fingerprint(fiddled("base", *BOTH[::-1]))


def test_sizes_follow_those_of_the_model():
    cfg = fiddled("base", use_mla)
    cfg.model.hidden_dim = 1280
    cfg.model.blocks[0].attention.head_dim = HeadDim.new(128)
    part = latent(built(cfg))
    assert (part.num_heads, part.head_dim, part.kv_rank) == (10, 128, 512)
    assert isinstance(part.rope, RoPE)
    assert part.rope_head_dim == part.rope.head_dim == 64
    assert part.value_head_dim == 128 and part.query_down is None


def test_sizes_that_are_given_are_taken_and_kept():
    cfg = fiddled("base")
    use_mla(cfg, kv_rank=96, query_rank=80, rope_head_dim=32, value_head_dim=48)
    use_mla(cfg, kv_rank=100)
    part = latent(built(cfg))
    assert (part.kv_rank, part.rope_head_dim, part.value_head_dim) == (100, 32, 48)
    assert part.query.in_features == 80


def test_what_both_attentions_know_goes_along():
    cfg = fiddled("gpt2_124m")
    attention = cfg.model.blocks[0].attention
    attention.kernel, attention.window, attention.scale = eager, 7, 0.5
    before = fdl.ordered_arguments(attention)
    use_mla(cfg)
    after = fdl.ordered_arguments(cfg.model.blocks[0].attention)
    assert {name: after[name] for name in before} == before
    part = latent(built(cfg))
    assert (part.kernel, part.window, part.scale) == (eager, 7, 0.5)
    assert part.rope is None and part.rope_head_dim == 32


def test_a_rope_that_comes_later_is_made_to_fit():
    cfg = fiddled("base", use_mla)
    rope = fiddled("base").model.blocks[0].attention.rope
    cfg.model.blocks[0].attention.rope = rope
    with pytest.raises(ConfigError, match=r"rope_head_dim=16 must equal .* head_dim=64"):
        cfg.model.blocks[0].attention.rope_head_dim = 16
        build_trainer(cfg)
    fit_rope(rope, 16)
    assert latent(built(cfg)).rope_head_dim == 16


def test_a_model_without_attention_is_an_error():
    empty: Any = fdl.Config(dict, model=fdl.Config(dict))
    with pytest.raises(ConfigError, match="holds no Attention or LatentAttention"):
        use_mla(empty)
    with pytest.raises(ConfigError, match="holds no Transformer"):
        use_mtp(empty)


def test_predictions_have_a_block_like_the_last_one():
    cfg = fiddled("base")
    use_mtp(cfg, num_tokens=2, weight=0.1)
    fiddlers.use_moe(cfg, every=2)
    model = built(cfg)
    assert isinstance(model, MultiTokenTransformer) and model.weight == 0.1
    assert len(model.predictions) == 2
    for prediction in model.predictions:
        assert isinstance(prediction, TokenPrediction) and isinstance(prediction.block, Block)
        kinds = [type(block.mlp) for block in model.blocks if isinstance(block, Block)]
        assert type(prediction.block.mlp) is kinds[-1] is not kinds[0]
    with pytest.raises(ConfigError, match="num_tokens=0"):
        use_mtp(cfg, num_tokens=0)


def test_it_learns_with_both():
    cfg = fiddled("debug", *BOTH)
    trainer = build_trainer(cfg)
    model = trainer.model
    materialize(model, device=torch.device("cpu"), seed=0)
    objective = NextToken(model.train(), trainer.loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = torch.arange(2 * 17).view(2, 17) % 16
    losses = []
    for _ in range(3):
        with collecting() as reports:
            loss = objective(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append((reports.metrics["loss"].item(), reports.metrics["mtp/1"].item()))
    first, last = losses[0], losses[-1]
    assert all(after < before - 0.1 for before, after in zip(first, last, strict=True))

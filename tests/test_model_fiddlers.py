"""Fiddlers of models: patterns of layers, mixtures of experts, latent attention, predictions."""

from typing import Any

import fiddle as fdl
import pytest
import torch
from small_models import FAMILIES, cut, tiered
from torch import nn

from fidgpt import configs, fiddlers, tags
from fidgpt import model as lm
from fidgpt.graph import ConfigError, bind, build, check, clone_part, fingerprint
from fidgpt.model import moe
from fidgpt.model.mla import LatentAttention
from fidgpt.model.prediction import MultiTokenTransformer, TokenPrediction
from fidgpt.model.reports import collecting
from fidgpt.runs.building import build_trainer
from fidgpt.train.loss import NextToken

BOTH = ["use_mla", "use_mtp"]


@pytest.fixture
def cfg() -> fdl.Config:
    """`debug` with six layers."""
    graph = configs.debug()
    graph.model.num_layers = 6
    return graph


def fiddled(config: str, *names: str) -> fdl.Config:
    cfg = getattr(configs, config)()
    for name in names:
        getattr(fiddlers, name)(cfg)
    return cfg


def built(cfg: fdl.Config) -> lm.Transformer:
    with torch.device("meta"):
        model = build(bind(check(cfg))).model
    assert isinstance(model, lm.Transformer)
    return model


def blocks(cfg: fdl.Config) -> Any:
    return built(cfg).blocks


def windows(cfg: fdl.Config) -> list[int | None]:
    return [block.attention.window for block in blocks(cfg)]


def mixed(cfg: fdl.Config) -> str:
    """A letter for each layer: m for a mixture, d for an MLP."""
    return "".join("m" if isinstance(block.mlp, moe.MoE) else "d" for block in blocks(cfg))


def test_an_entry_stands_for_every_so_many_th_layer(cfg):
    fiddlers.unroll(cfg, every=3)
    assert len(cfg.model.blocks) == 3
    cfg.model.blocks[-1].attention.window = 7
    assert windows(cfg) == [None, None, 7] * 2


def test_a_pattern_that_is_there_is_kept(cfg):
    cfg.model.num_layers = 12
    fiddlers.use_sliding_window(cfg, window=5, every=2)
    before = windows(cfg)
    fiddlers.unroll(cfg, every=3)
    assert len(cfg.model.blocks) == 6 and windows(cfg) == before
    fiddlers.use_moe(cfg, every=3, first_dense=1)
    assert windows(cfg) == before and mixed(cfg) == "ddm" * 4


def test_what_is_no_model_is_named():
    empty: Any = fdl.Config(dict, model=fdl.Config(dict))
    with pytest.raises(ConfigError, match="holds no Attention or LatentAttention"):
        fiddlers.use_mla(empty)
    with pytest.raises(ConfigError, match="holds no Transformer"):
        fiddlers.use_mtp(empty)


@pytest.mark.parametrize(
    ("every", "first_dense", "layers"),
    [(1, 0, "mmmmmm"), (2, 0, "dmdmdm"), (3, 0, "ddmddm"), (1, 2, "ddmmmm"), (2, 3, "dddmdm")],
)
def test_which_layers_are_mixtures(cfg, every, first_dense, layers):
    other = clone_part(cfg)
    fiddlers.use_moe(cfg, every=every, first_dense=first_dense)
    assert mixed(cfg) == layers
    fiddlers.unroll(cfg)
    fiddlers.unroll(other)
    fiddlers.use_moe(other, every=every, first_dense=first_dense)
    assert mixed(cfg) == mixed(other) == layers


class Doubling(nn.Module):
    """An MLP of a user's own."""

    def __init__(self, *, hidden_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.linear(x)


@pytest.mark.parametrize(
    ("mlp", "arguments", "experts"),
    [
        (lm.SwiGLU, {}, moe.GatedExperts),
        (lm.GatedMLP, {"activation": torch.relu}, moe.GatedExperts),
        (lm.GELU, {"bias": True}, moe.PlainExperts),
        (lm.SquaredReLU, {}, moe.PlainExperts),
        (Doubling, {}, moe.SeparateExperts),
    ],
)
def test_an_expert_computes_what_the_mlp_did(mlp, arguments, experts):
    cfg = configs.debug()
    cfg.model.hidden_dim = 16
    cfg.model.blocks[0].mlp = part = fdl.ArgFactory(mlp, hidden_dim=16, **arguments)
    fiddlers.use_moe(cfg, num_experts=4)
    module = fdl.build(fdl.cast(fdl.Partial, bind(cfg).model.blocks[0].mlp))()
    dense: Any = fdl.build(fdl.cast(fdl.Partial, part))()
    assert type(module.experts) is experts
    with torch.no_grad():
        for name, parameter in module.experts.named_parameters():
            other = f"{name}.weight".replace("_bias.weight", ".bias")
            other = name.split(".", 2)[2] if name.startswith("each.") else other
            parameter.copy_(dense.get_parameter(other).expand_as(parameter))
    x = torch.randn(5, 16)
    torch.testing.assert_close(module(x), dense(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(configs.__all__, FAMILIES))
def test_every_config_can_be_a_mixture(name):
    cfg = getattr(configs, name)()
    cut(cfg)
    fiddlers.use_moe(cfg, num_experts=4, ffn_dim=96)
    moes = [part for part in built(cfg).modules() if isinstance(part, moe.MoE)]
    assert moes and all(part.num_experts == 4 for part in moes)
    assert all(part.experts.get_parameter("up").shape[1] == 96 for part in moes)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("mlp", ["use_swiglu", "use_gelu"])
def test_adapters_reach_every_expert_and_the_shared_one(cfg, mlp, place):
    names = ["use_moe", "use_shared_expert"]
    names.insert(place, "use_lora")
    for name in [mlp, *names]:
        getattr(fiddlers, name)(cfg)
    trainer = build_trainer(cfg)
    moes: list[Any] = [part for part in trainer.model.modules() if isinstance(part, moe.MoE)]
    for part in moes:
        assert list(part.experts.adapters) == ["gate", "up", "down"][mlp == "use_gelu" :]
        assert all(isinstance(one, lm.LoRALinear) for one in part.shared.children())
    assert len(moes) == 6 and trainer.trainable is lm.is_adapter


def latent(cfg: fdl.Config) -> LatentAttention:
    """The attention of the first layer; all are latent."""
    modules = [*built(cfg).modules()]
    attentions = [module for module in modules if isinstance(module, LatentAttention)]
    assert attentions and not any(isinstance(module, lm.Attention) for module in modules)
    return attentions[0]


@pytest.mark.parametrize("change", BOTH)
@pytest.mark.parametrize("other", ["make_large", "use_layer_norm", "use_moe", "use_lora", "unroll"])
def test_the_order_does_not_matter(other, change):
    assert fingerprint(fiddled("base", change, other)) == fingerprint(
        fiddled("base", other, change)
    )


def test_sizes_follow_those_of_the_model_unless_they_are_set():
    cfg = fiddled("base", "use_mla")
    cfg.model.hidden_dim = 1280
    cfg.model.blocks[0].attention.head_dim = tags.HeadDim.new(128)
    part = latent(cfg)
    assert (part.num_heads, part.head_dim, part.kv_rank) == (10, 128, 512)
    assert isinstance(part.rope, lm.RoPE)
    assert part.rope_head_dim == part.rope.head_dim == 64
    assert part.value_head_dim == 128 and part.query_down is None
    fiddlers.use_mla(cfg, kv_rank=96, query_rank=80, rope_head_dim=32, value_head_dim=48)
    fiddlers.use_mla(cfg, kv_rank=100)
    part = latent(cfg)
    assert (part.kv_rank, part.rope_head_dim, part.value_head_dim) == (100, 32, 48)
    assert part.query.in_features == 80


def test_what_both_attentions_have_stays():
    cfg = fiddled("gpt2_124m")
    attention = cfg.model.blocks[0].attention
    attention.kernel, attention.window, attention.scale = lm.eager, 7, 0.5
    before = fdl.ordered_arguments(attention)
    fiddlers.use_mla(cfg)
    assert before.items() <= fdl.ordered_arguments(cfg.model.blocks[0].attention).items()
    part = latent(cfg)
    assert (part.kernel, part.window, part.scale) == (lm.eager, 7, 0.5)
    assert part.rope is None and part.rope_head_dim == 32


def test_predictions_have_a_block_like_the_last_one():
    cfg = fiddled("base")
    fiddlers.use_mtp(cfg, num_tokens=2, weight=0.1)
    fiddlers.use_moe(cfg, every=2)
    model = built(cfg)
    assert isinstance(model, MultiTokenTransformer) and model.weight == 0.1
    assert len(model.predictions) == 2
    kinds = [type(block.mlp) for block in model.blocks if isinstance(block, lm.Block)]
    for prediction in model.predictions:
        assert isinstance(prediction, TokenPrediction) and isinstance(prediction.block, lm.Block)
        assert type(prediction.block.mlp) is kinds[-1] is not kinds[0]


@pytest.mark.slow
def test_latent_attention_and_predictions_train():
    trainer = build_trainer(fiddled("debug", *BOTH))
    model = trainer.model
    lm.materialize(model, device=torch.device("cpu"), seed=0)
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
    assert all(after < before - 0.1 for before, after in zip(losses[0], losses[-1], strict=True))

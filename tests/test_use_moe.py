"""`use_moe` and its kin: which layers are mixtures, of what, in any order and again."""

import itertools
from typing import Any

import fiddle as fdl
import pytest
import torch
from torch import nn

from fidgpt import configs, fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.graph import ConfigError, bind, build, check, clone_part, find, fingerprint
from fidgpt.model import (
    GELU,
    MLP,
    GatedMLP,
    GeGLU,
    LoRALinear,
    SquaredReLU,
    SwiGLU,
    Transformer,
    is_adapter,
)
from fidgpt.model.moe import (
    Capacity,
    GatedExperts,
    MoE,
    PlainExperts,
    SeparateExperts,
    SigmoidRouter,
    StackedLoRA,
)


class Doubling(nn.Module):
    """An MLP of a user's own."""

    def __init__(self, *, hidden_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_dim, hidden_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.linear(x)


def is_part(value: object) -> bool:
    return isinstance(value, fdl.Buildable)


@pytest.fixture
def cfg() -> fdl.Config:
    """`debug` with six layers."""
    graph = configs.debug()
    graph.model.num_layers = 6
    return graph


def built(cfg: fdl.Config) -> Transformer:
    with torch.device("meta"):
        model = build(bind(check(cfg))).model
    assert isinstance(model, Transformer)
    return model


def mixed(cfg: fdl.Config) -> str:
    """A letter for each layer: m for a mixture, d for an MLP."""
    blocks: Any = built(cfg).blocks
    return "".join("m" if isinstance(block.mlp, MoE) else "d" for block in blocks)


@pytest.mark.parametrize(
    ("every", "first_dense", "layers"),
    [(1, 0, "mmmmmm"), (2, 0, "dmdmdm"), (3, 0, "ddmddm"), (1, 2, "ddmmmm"), (2, 3, "dddmdm")],
)
def test_which_layers_are_mixtures(cfg, every, first_dense, layers):
    fiddlers.use_moe(cfg, every=every, first_dense=first_dense)
    assert mixed(cfg) == layers
    before = fingerprint(cfg)
    fiddlers.use_moe(cfg, every=every, first_dense=first_dense)
    assert fingerprint(cfg) == before


def test_the_layers_of_a_mixture_everywhere_can_be_thinned_out(cfg):
    fiddlers.use_moe(cfg)
    fiddlers.use_sigmoid_router(cfg)
    fiddlers.use_moe(cfg, every=2)
    assert mixed(cfg) == "dmdmdm"
    (moe,) = find(cfg.model, MoE)
    assert fdl.get_callable(moe.router) is SigmoidRouter


def test_first_layers_follow_a_depth_set_later(cfg):
    fiddlers.use_moe(cfg, first_dense=1)
    cfg.model.num_layers = 9
    assert mixed(cfg) == "dmmmmmmmm"
    cfg.model.num_layers = 1
    assert mixed(cfg) == "d"


def test_a_pattern_that_is_there_is_kept(cfg):
    near, far = cfg.model.blocks[0], clone_part(cfg.model.blocks[0])
    far.attention.dropout = 0.25
    cfg.model.blocks = [near, near, far]
    fiddlers.use_moe(cfg, every=2, first_dense=1)
    blocks: Any = built(cfg).blocks
    assert [block.attention.dropout for block in blocks] == [0, 0, 0.25, 0, 0, 0.25]
    assert mixed(cfg) == "dmdmdm"


def test_layers_get_their_mlp_back(cfg):
    dense = fingerprint(cfg)
    fiddlers.use_moe(cfg)
    fiddlers.use_moe(cfg, first_dense=6)
    assert mixed(cfg) == "dddddd"
    kinds = {fdl.get_callable(block.mlp) for block in cfg.model.first_blocks}
    assert kinds == {SwiGLU} and fingerprint(cfg) != dense


@pytest.mark.parametrize(
    ("mlp", "experts"),
    [
        (fdl.ArgFactory(SwiGLU), GatedExperts),
        (fdl.ArgFactory(GeGLU), GatedExperts),
        (fdl.ArgFactory(GatedMLP, activation=torch.relu), GatedExperts),
        (fdl.ArgFactory(GELU, bias=True), PlainExperts),
        (fdl.ArgFactory(SquaredReLU), PlainExperts),
        (fdl.ArgFactory(MLP, activation=torch.relu), PlainExperts),
        (fdl.ArgFactory(Doubling), SeparateExperts),
    ],
    ids=lambda value: fdl.get_callable(value).__name__ if is_part(value) else "by",
)
def test_an_expert_computes_what_the_mlp_did(mlp, experts):
    mlp.hidden_dim = 16
    moe = one_mixture(mlp)
    module, dense = fdl.build(moe)(), fdl.build(fdl.cast(fdl.Partial, mlp))()
    assert type(module.experts) is experts
    give_all_experts_the_weights(module.experts, dense)
    x = torch.randn(5, 16)
    torch.testing.assert_close(module(x), dense(x))


def one_mixture(mlp: Any) -> fdl.Partial:
    """What `use_moe` makes of an MLP, with all quantities set."""
    cfg = configs.debug()
    cfg.model.hidden_dim = 16
    cfg.model.blocks[0].mlp = mlp
    fiddlers.use_moe(cfg, num_experts=4)
    bound = bind(cfg)
    return fdl.cast(fdl.Partial, bound.model.blocks[0].mlp)


@torch.no_grad()
def give_all_experts_the_weights(experts: nn.Module, dense: nn.Module) -> None:
    for name, parameter in experts.named_parameters():
        if name.startswith("each."):
            parameter.copy_(dense.get_parameter(name.split(".", 2)[2]))
        else:
            part = name.removesuffix("_bias")
            other = f"{part}.bias" if name.endswith("_bias") else f"{part}.weight"
            parameter.copy_(dense.get_parameter(other).expand_as(parameter))


@pytest.mark.parametrize("name", configs.__all__)
def test_it_works_on_every_config(name):
    cfg = getattr(configs, name)()
    fiddlers.use_moe(cfg, num_experts=4, ffn_dim=96)
    moes = [part for part in built(cfg).modules() if isinstance(part, MoE)]
    assert moes and all(moe.num_experts == 4 for moe in moes)
    assert all(moe.experts.get_parameter("up").shape[1] == 96 for moe in moes)


ORDER_IS_FREE = [
    lambda cfg: fiddlers.use_moe(cfg, num_experts=4, every=2, first_dense=1),
    fiddlers.make_large,
    fiddlers.use_gelu,
    fiddlers.use_gqa,
    fiddlers.use_sandwich_norm,
    fiddlers.tie_embeddings,
]


@pytest.mark.parametrize("pair", [*itertools.combinations(ORDER_IS_FREE, 2)])
def test_the_order_is_free(pair):
    prints = []
    for order in (pair, pair[::-1]):
        cfg = configs.debug()
        for fiddler in order:
            fiddler(cfg)
        prints.append(fingerprint(cfg))
    assert prints[0] == prints[1]


def test_unrolled_layers_and_a_pattern_are_the_same_layers(cfg):
    other = clone_part(cfg)
    fiddlers.use_moe(cfg, every=2, first_dense=3)
    fiddlers.unroll(cfg)
    fiddlers.unroll(other)
    fiddlers.use_moe(other, every=2, first_dense=3)
    assert mixed(cfg) == mixed(other) == "dddmdm"


def test_applied_again_it_changes_numbers_only(cfg):
    fiddlers.use_moe(cfg, num_experts=4, top_k=1)
    fiddlers.use_sigmoid_router(cfg)
    fiddlers.use_loss_free_balancing(cfg, rate=0.01)
    fiddlers.use_shared_expert(cfg)
    fiddlers.use_expert_capacity(cfg, factor=2.0)
    fiddlers.use_moe(cfg, num_experts=6, top_k=3)
    moe = next(part for part in built(cfg).modules() if isinstance(part, MoE))
    assert isinstance(moe.router, SigmoidRouter) and isinstance(moe.dispatch, Capacity)
    assert (moe.num_experts, moe.router.top_k) == (6, 3)
    assert moe.router.selection_bias is not None and len(moe.router.selection_bias.bias) == 6
    assert [type(part).__name__ for part in moe.balancing] == ["RouterZLoss"]
    assert isinstance(moe.shared, SwiGLU)


def test_experts_and_the_shared_one_change_their_activation_with_a_fiddler(cfg):
    fiddlers.use_moe(cfg)
    fiddlers.use_shared_expert(cfg, ffn_dim=40)
    fiddlers.use_squared_relu(cfg)
    (moe,) = find(cfg.model, MoE)
    assert fdl.get_callable(moe.experts) is PlainExperts
    assert fdl.get_callable(moe.shared) is SquaredReLU and moe.shared.ffn_dim == 40
    built(cfg)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("mlp", ["use_swiglu", "use_gelu"])
def test_adapters_reach_every_expert_and_the_shared_one(cfg, mlp, place):
    names = ["use_moe", "use_shared_expert"]
    names.insert(place, "use_lora")
    for name in [mlp, *names]:
        getattr(fiddlers, name)(cfg)
    trainer = build_trainer(cfg)
    moes: list[Any] = [part for part in trainer.model.modules() if isinstance(part, MoE)]
    names = ["gate", "up", "down"] if mlp == "use_swiglu" else ["up", "down"]
    for moe in moes:
        assert list(moe.experts.adapters) == names
        assert all(isinstance(part, LoRALinear) for part in moe.shared.children())
    assert len(moes) == 6 and trainer.trainable is is_adapter


def test_adapters_stay_where_experts_and_mlps_take_turns(cfg):
    fiddlers.use_moe(cfg)
    fiddlers.use_lora(cfg, rank=3)
    fiddlers.use_gelu(cfg)
    (moe,) = find(cfg.model, MoE)
    assert fdl.get_callable(moe.experts.adapter) is StackedLoRA
    fiddlers.use_moe(cfg, every=2)
    mlp = cfg.model.blocks[0].mlp
    assert fdl.get_callable(mlp) is GELU and fdl.get_callable(mlp.linear) is LoRALinear
    assert mlp.linear.rank == 3
    built(cfg)


def test_mistakes_are_named(cfg):
    with pytest.raises(ConfigError, match=r"every=0, first_dense=0"):
        fiddlers.use_moe(cfg, every=0)
    with pytest.raises(ConfigError, match="holds no MoE"):
        fiddlers.use_shared_expert(cfg)
    fiddlers.use_moe(cfg, num_experts=2, top_k=3)
    with pytest.raises(ConfigError, match=r"top_k=3 of num_experts=2"):
        build_trainer(cfg)

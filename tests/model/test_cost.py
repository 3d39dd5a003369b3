"""Counts of operations, parameters and cache sizes against torch's counter and closed forms."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from small_models import small_block, small_model, started
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fidgpt import configs, cost, graph
from fidgpt import model as lm
from fidgpt.model.cache import Cache

SEQ, BATCH, HIDDEN, LAYERS = 128, 2, 256, 3
SIZES: dict[str, Any] = {"hidden_dim": HIDDEN, "head_dim": 64}
Make = Callable[[], nn.Module]


def moe(
    *, router: Callable[..., lm.Router], experts: Callable[..., lm.Experts], **options: Any
) -> lm.MoE:
    sizes = {"hidden_dim": HIDDEN, "num_experts": 8}
    return lm.MoE(
        num_experts=8,
        router=router(**sizes, top_k=2),
        experts=experts(**sizes, ffn_dim=128),
        **options,
    )


def gated_shared() -> lm.GatedShared:
    return lm.GatedShared(hidden_dim=HIDDEN, mlp=lm.SwiGLU(hidden_dim=HIDDEN, ffn_dim=64))


ATTENTIONS: dict[str, Make] = {
    "multi-head": partial(lm.Attention, **SIZES),
    "more heads than fit": partial(lm.Attention, **SIZES, num_heads=8),
    "alibi": partial(lm.Attention, **SIZES, scores=[lm.ALiBi()]),
    "adapters": partial(lm.Attention, **SIZES, linear=partial(lm.LoRALinear, rank=8)),
    "latent queries": partial(
        lm.LatentAttention, **SIZES, kv_rank=96, query_rank=48, value_head_dim=32, rope_head_dim=32
    ),
}
MLPS: dict[str, Make] = {
    "gelu": partial(lm.GELU, hidden_dim=HIDDEN, bias=True),
    "gated by exact gelu": partial(lm.GatedMLP, hidden_dim=HIDDEN, activation=lm.gelu),
    "mixture": partial(moe, router=lm.SoftmaxRouter, experts=lm.GatedExperts),
    "mixture with shared": partial(
        moe, router=lm.SigmoidRouter, experts=lm.PlainExperts, shared=gated_shared()
    ),
    "mixture with even room": partial(
        moe, router=lm.SoftmaxRouter, experts=lm.GatedExperts, dispatch=lm.Capacity(factor=1.0)
    ),
}


def model(attention: Make = ATTENTIONS["multi-head"], mlp: Make = MLPS["gelu"]) -> lm.Transformer:
    def block() -> lm.Block:
        norms = {name: nn.LayerNorm(HIDDEN) for name in ("attention_norm", "mlp_norm")}
        return lm.Block(attention=attention(), mlp=mlp(), **norms)  # pyright: ignore

    positions = lm.LearnedPositions(seq_len=SEQ, hidden_dim=HIDDEN)
    sizes: dict[str, Any] = dict(num_layers=LAYERS, hidden_dim=HIDDEN, vocab_size=1000)
    return small_model(block, positions=positions, norm=nn.LayerNorm(HIDDEN), **sizes)


def on_meta(make: Callable[[], lm.Transformer]) -> lm.Transformer:
    with torch.device("meta"):
        return make().to("meta")


def counted(module: lm.Transformer, *, backward: bool = False) -> float:
    """By torch, per token. It counts all scores of a causal attention, as we do."""
    with FlopCounterMode(display=False) as counter:
        logits = module(torch.zeros(BATCH, SEQ, dtype=torch.long, device="meta"))
        if backward:
            logits.sum().backward()
    return counter.get_total_flops() / (BATCH * SEQ)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ATTENTIONS, *MLPS])
def test_components_cost_what_torch_counts(name: str) -> None:
    parts = {"attention": ATTENTIONS[name]} if name in ATTENTIONS else {"mlp": MLPS[name]}
    module = on_meta(lambda: model(**parts))
    assert cost.flops_per_token(module, seq_len=SEQ) == pytest.approx(counted(module), rel=1e-2)
    assert not cost.undeclared_flops(module, seq_len=SEQ)


@pytest.mark.parametrize("kind", [lm.Attention, partial(lm.LatentAttention, kv_rank=96)])
def test_a_window_costs_what_a_sequence_as_long_does(kind: Callable[..., nn.Module]) -> None:
    windowed = on_meta(partial(model, partial(kind, **SIZES, window=32)))
    whole = on_meta(partial(model, partial(kind, **SIZES)))
    assert cost.flops_per_token(windowed, seq_len=SEQ) == cost.flops_per_token(whole, seq_len=32)


def test_a_training_step_costs_three_times_as_much() -> None:
    """Of attention's own share the fused backward does 5 products for 2, so it is left out here."""

    def without_scores() -> lm.Attention:
        return lm.Attention(**SIZES, kernel=lambda query, key, value, scoring: query + key + value)

    module = on_meta(lambda: model(without_scores))
    products = cost.flops_per_token(module, seq_len=0)
    passes = counted(module, backward=True)
    assert cost.TRAINING_PASSES * products == pytest.approx(passes, rel=1e-2)


@pytest.mark.slow
def test_gpt2_124m_costs_two_operations_per_weight_and_its_scores() -> None:
    """Closed form: 2 (12 layers * 12 * 768^2 + 50,257 * 768) + 12 layers * 4 * 1,024 * 768."""
    from fidgpt.configs import gpt2_124m
    from fidgpt.runs.building import build_trainer

    module = build_trainer(gpt2_124m()).model
    weights = 12 * 12 * 768**2 + 50_257 * 768
    assert cost.flops_per_token(module, seq_len=1024) == 2 * weights + 12 * 4 * 1024 * 768


class Summing(nn.Module):
    """A custom mixer that does not declare its operations."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor, ctx: object) -> torch.Tensor:
        x = self.project(x)
        return (x @ x.mT).tril() @ x


class Declaring(Summing):
    """The same with a declaration."""

    def own_flops_per_token(self, seq_len: int) -> int:
        return 4 * seq_len * HIDDEN


@pytest.mark.slow
def test_what_a_component_does_not_declare_is_measured() -> None:
    undeclared, declared = (on_meta(partial(model, kind)) for kind in (Summing, Declaring))
    own = 4 * SEQ * HIDDEN
    paths = [f"blocks.{layer}.attention" for layer in range(LAYERS)]
    assert cost.undeclared_flops(undeclared, seq_len=SEQ) == dict.fromkeys(paths, own)
    assert cost.undeclared_flops(declared, seq_len=SEQ) == {}
    with_own, without = (cost.flops_per_token(one, seq_len=SEQ) for one in (declared, undeclared))
    assert with_own - without == LAYERS * own
    # A declaration of the model itself does not cover its components.
    undeclared.__dict__["own_flops_per_token"] = lambda seq_len: 1
    assert len(cost.undeclared_flops(undeclared, seq_len=SEQ)) == LAYERS


def test_places_add_up_to_the_model() -> None:
    module = on_meta(partial(model, Summing, MLPS["mixture"]))
    missing = cost.undeclared_flops(module, seq_len=SEQ)
    places = cost.cost_by_place(module, seq_len=SEQ, measured=missing)
    total = cost.flops_per_token(module, seq_len=SEQ) + sum(missing.values())
    assert sum(place.flops for place in places) == total
    assert sum(place.parameters for place in places) == cost.count_parameters(module).total
    attention = next(place for place in places if place.place == "blocks.*.attention")
    assert (attention.kind, attention.count) == ("Summing", LAYERS)
    assert (attention.linear, attention.own) == (LAYERS * 2 * HIDDEN**2, LAYERS * 4 * SEQ * HIDDEN)
    assert attention.measured == attention.own


def test_parameters_by_their_use() -> None:
    module = on_meta(partial(model, mlp=MLPS["mixture"]))
    count = cost.count_parameters(module)
    assert count.total == sum(parameter.numel() for parameter in module.parameters())
    expert = 3 * HIDDEN * 128
    assert count.active == count.total - LAYERS * (8 - 2) * expert
    assert count.embedding == (1000 + SEQ) * HIDDEN
    assert count.without_embedding == count.total - count.embedding
    module.unembedding = lm.Unembedding(lm.token_table(vocab_size=1000, hidden_dim=HIDDEN))
    assert cost.count_parameters(module).embedding == (2 * 1000 + SEQ) * HIDDEN


def test_shared_parameters_are_named_once_with_their_other_names() -> None:
    module = on_meta(model)
    assert cost.shared_parameters(module) == {"embedding.weight": ["unembedding.weight"]}
    module.unembedding = lm.Unembedding(lm.token_table(vocab_size=1000, hidden_dim=HIDDEN))
    assert cost.shared_parameters(module) == {}
    for block in module.blocks:
        block.attention_norm = cast(nn.Module, module.norm)
    names = [f"blocks.{i}.attention_norm" for i in range(LAYERS)] + ["norm"]
    assert cost.shared_parameters(module) == {
        f"{names[0]}.{kind}": [f"{name}.{kind}" for name in names[1:]]
        for kind in ("weight", "bias")
    }


CONFIG_SEQ = 64  # no longer than any window: torch counts whole squares, and we count windows


def families() -> dict[str, Callable[[], Any]]:
    """The first config of each file that needs no arguments."""
    found: dict[str, Callable[[], Any]] = {}
    for name in configs.__all__:
        config = getattr(configs, name)
        if not inspect.signature(config).parameters:
            found.setdefault(config.__module__.rpartition(".")[2], config)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("config", families().values(), ids=families())
def test_families_cost_what_torch_counts(config: Callable[[], Any]) -> None:
    with torch.device("meta"):
        model = graph.build(config()).model
    model.blocks = model.blocks[:6]  # of every kind
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, CONFIG_SEQ, dtype=torch.long, device="meta"))
        counted = cost.flops_per_token(model, seq_len=CONFIG_SEQ)
    assert counted == pytest.approx(counter.get_total_flops() / CONFIG_SEQ, rel=1e-2)
    assert cost.undeclared_flops(model, seq_len=CONFIG_SEQ) == {}


CACHE_HIDDEN, CONTEXT, WINDOW = 64, 40, 16


def cache_model(*attentions: Any, share: bool = False) -> lm.Transformer:
    blocks = [partial(small_block, one, hidden_dim=CACHE_HIDDEN) for one in attentions]
    factories = [lm.Shared(one) for one in blocks] if share else blocks
    return small_model(*factories, num_layers=6, hidden_dim=CACHE_HIDDEN)


GROUPED = partial(lm.Attention, num_kv_heads=2)
LATENT = partial(lm.LatentAttention, kv_rank=24, rope_head_dim=8)
WINDOWED = partial(lm.Attention, window=WINDOW)


@pytest.mark.parametrize(
    ("attentions", "share"),
    [
        ([GROUPED], False),
        ([LATENT], False),
        ([WINDOWED, GROUPED], False),
        ([WINDOWED, WINDOWED, LATENT], False),
        ([GROUPED], True),
    ],
    ids=["grouped", "latent", "windowed", "mixed", "one block for all"],
)
@torch.no_grad()
def test_a_filled_cache_takes_what_was_predicted(attentions: list[Any], share: bool) -> None:
    module, cache = started(cache_model(*attentions, share=share)), Cache(capacity=CONTEXT)
    tokens = torch.zeros(1, CONTEXT, dtype=torch.long)
    module.features(tokens, replace(lm.one_document(tokens), cache=cache))
    assert cost.cache_bytes(cost.without_memory(module), context=CONTEXT) == cache.bytes()

"""Counts of operations, parameters and cache sizes against torch's counter and counts by hand."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from small_models import small_block, small_model, started
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fidgpt import configs, cost, graph
from fidgpt import model as lm
from fidgpt.model.cache import Cache
from fidgpt.model.reports import collecting

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


def counted(module: lm.LanguageModel, *, seq_len: int = SEQ) -> cost.ForwardPass:
    found = cost.forward_pass(module, seq_len=seq_len)
    assert found.is_executed
    return found


def by_torch(module: nn.Module, tokens: Tensor) -> float:
    """By torch, per token; it counts all scores of a causal attention."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter, collecting():
        module.train()(tokens)
    return counter.get_total_flops() / tokens.numel()


def full(found: cost.ForwardPass) -> float:
    """As torch counts: all scores of causal attentions, and not only of the keys that are seen."""
    unseen = 1 - 2 * SEQ / (SEQ + 1)
    attention = sum(found.times(path) * flops.attention for path, flops in found.places.items())
    return found.total - unseen * attention


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ATTENTIONS, *MLPS])
def test_components_cost_what_torch_counts(name: str) -> None:
    parts = {"attention": ATTENTIONS[name]} if name in ATTENTIONS else {"mlp": MLPS[name]}
    module = on_meta(lambda: model(**parts))
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.long, device="meta")
    assert full(counted(module)) == pytest.approx(by_torch(module, tokens), rel=1e-2)


def test_a_model_that_reads_values_costs_a_multiply_add_for_each_active_weight() -> None:
    class Reading(lm.GELU):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("as of a value on the meta device")

    module = on_meta(partial(model, mlp=partial(Reading, hidden_dim=HIDDEN)))
    found = cost.forward_pass(module, seq_len=SEQ)
    norms = (2 * LAYERS + 1) * 2 * HIDDEN
    weights = LAYERS * 12 * HIDDEN**2 + 1000 * HIDDEN + norms
    assert (found.is_executed, found.total) == (False, 2 * weights)


# Operations of products by weights, and of scores and values, from the shapes of the papers.
HAND: dict[str, tuple[int, float, float]] = {
    "gpt2_124m": (1024, 2 * (12 * 12 * 768**2 + 50_257 * 768), 12 * 4 * 512.5 * 768),
    "llama3_8b": (
        8192,
        2 * (32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14_336) + 128_256 * 4096),
        32 * 4 * 4096.5 * 4096,
    ),
    "gpt_oss_20b": (
        4096,
        2 * (24 * (2880 * 64 * (128 + 16 + 0.5) + 4 * 3 * 2880**2) + 201_088 * 2880),
        12 * 4 * (2048.5 + 128 - 128 * 127 / 8192) * 4096,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HAND)
def test_families_cost_what_a_count_by_hand_gives(name: str) -> None:
    with torch.device("meta"):
        module = graph.build(getattr(configs, name)()).model
    seq_len, products, attention = HAND[name]
    found = counted(module, seq_len=seq_len)
    own = sum(found.times(path) * flops.attention for path, flops in found.places.items())
    assert own == pytest.approx(attention, rel=1e-6)
    assert found.total == pytest.approx(products + attention, rel=1e-3)


class Summing(nn.Module):
    """A custom mixer."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, ctx: object) -> Tensor:
        x = self.project(x)
        return (x @ x.mT).tril() @ x


@pytest.mark.parametrize("on", [on_meta, lambda make: make()])
def test_places_add_up_to_the_model(on: Callable[[Any], lm.Transformer]) -> None:
    module = on(partial(model, Summing, MLPS["mixture"]))
    found = counted(module)
    places = cost.cost_by_place(module, found)
    assert sum(place.flops.total for place in places) == found.total
    assert sum(found.layers) + sum(found.ends) == found.total
    assert sum(place.parameters for place in places) == cost.count_parameters(module).total
    attention = next(place for place in places if place.place == "blocks.*.attention")
    assert (attention.kind, attention.count) == ("Summing", LAYERS)
    assert attention.flops.total == LAYERS * (2 * HIDDEN**2 + 4 * SEQ * HIDDEN)


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

"""Low-rank adapters of experts, against a `LoRALinear` for each expert."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fidgpt.cost import flops_per_token
from fidgpt.model import GELU, LoRALinear, MoE, SoftmaxRouter, SwiGLU, is_adapter, materialize
from fidgpt.model.moe import (
    GatedExperts,
    PlainExperts,
    SeparateExperts,
    StackedExperts,
    StackedLoRA,
)

HIDDEN, EXPERTS, TOP_K, FFN, RANK = 16, 4, 2, 24, 3
ADAPTER: dict[str, Any] = {"rank": RANK, "alpha": 12.0}
KINDS: dict[str, Any] = {"gated": (GatedExperts, SwiGLU), "plain": (PlainExperts, GELU)}


def mixture(experts: Any) -> MoE:
    router = SoftmaxRouter(hidden_dim=HIDDEN, num_experts=EXPERTS, top_k=TOP_K)
    return MoE(num_experts=EXPERTS, router=router, experts=experts)


def stacked(kind: str, **options: Any) -> StackedExperts:
    return KINDS[kind][0](hidden_dim=HIDDEN, num_experts=EXPERTS, ffn_dim=FFN, **options)


def trained(kind: str = "gated") -> MoE:
    """Adapters that have moved away from their start, and biases too."""
    moe = mixture(stacked(kind, adapter=partial(StackedLoRA, **ADAPTER), bias=True)).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in moe.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return moe


def tokens() -> Tensor:
    return torch.randn(2, 7, HIDDEN, generator=torch.Generator().manual_seed(1)).double()


def test_they_start_as_plain_experts_of_the_same_seed():
    with torch.device("meta"):
        plain = mixture(stacked("gated"))
        adapted = mixture(stacked("gated", adapter=partial(StackedLoRA, rank=RANK)))
    for model in (plain, adapted):
        materialize(model, device=torch.device("cpu"), seed=0)
    missing, unexpected = adapted.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected and all(name.rpartition(".")[2].startswith("lora_") for name in missing)
    x = tokens().float()
    assert torch.equal(adapted(x), plain(x))


@pytest.mark.parametrize("kind", KINDS)
def test_each_expert_computes_what_an_mlp_with_adapters_does(kind):
    moe, linear = trained(kind), partial(LoRALinear, **ADAPTER)
    make = partial(KINDS[kind][1], hidden_dim=HIDDEN, ffn_dim=FFN, bias=True, linear=linear)
    separate = mixture(SeparateExperts(num_experts=EXPERTS, expert=make)).double()
    separate.router.load_state_dict(moe.router.state_dict())
    experts = dict(moe.experts.named_parameters())
    with torch.no_grad():
        for path, parameter in separate.experts.named_parameters():
            _, number, name, half = path.split(".")
            ours = {"weight": name, "bias": f"{name}_bias"}.get(half, f"adapters.{name}.{half}")
            parameter.copy_(experts[ours][int(number)])
    torch.testing.assert_close(moe(tokens()), separate(tokens()))


@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_compute_the_same(kind):
    moe = trained(kind)
    merged = mixture(stacked(kind, bias=True)).double()
    state = {name: one for name, one in moe.state_dict().items() if "lora_" not in name}
    experts = moe.experts
    assert isinstance(experts, StackedExperts)
    for name in experts.adapters:
        state[f"experts.{name}"] = experts.merged_weight(name)
    merged.load_state_dict(state)
    torch.testing.assert_close(merged(tokens()), moe(tokens()))


def test_adapters_learn_while_all_else_stays():
    moe = trained()
    for name, parameter in moe.named_parameters():
        parameter.requires_grad_(is_adapter(name, parameter))
    moe(tokens()).square().sum().backward()
    learning = {name for name, one in moe.named_parameters() if one.grad is not None}
    assert learning == {
        f"experts.adapters.{name}.lora_{half}" for name in ("gate", "up", "down") for half in "ab"
    }


def test_dropout_drops_what_adapters_hear_in_training_alone():
    adapter = partial(StackedLoRA, rank=RANK, dropout=0.5)
    moe, x = mixture(stacked("gated", adapter=adapter)), tokens().float()
    for parameter in moe.experts.parameters():
        nn.init.constant_(parameter, 0.1)
    assert not torch.equal(moe(x), moe(x))
    moe.eval()
    assert torch.equal(moe(x), moe(x))


def test_they_cost_both_thin_products_of_the_chosen_experts():
    with torch.device("meta"):
        moe = mixture(stacked("gated", adapter=partial(StackedLoRA, rank=RANK)))
        with FlopCounterMode(display=False) as counter:
            moe(torch.empty(4, 32, HIDDEN))
    assert flops_per_token(moe, seq_len=32) == counter.get_total_flops() / 128
    per_expert = 3 * (HIDDEN * FFN + RANK * (HIDDEN + FFN))
    assert moe.own_idle_parameters() == (EXPERTS - TOP_K) * per_expert


@pytest.mark.parametrize(
    ("wrong", "told"), [({"rank": 0}, "rank=0"), ({"rank": 1, "dropout": 1.0}, "dropout=1.0")]
)
def test_what_cannot_be_is_said(wrong, told):
    with pytest.raises(ValueError, match=told):
        StackedLoRA(EXPERTS, FFN, HIDDEN, **wrong)

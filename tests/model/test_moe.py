"""Mixtures of experts against plain loops and closed forms; interop compares whole families."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import drawn, filled, started
from torch import Tensor, nn

from fidgpt import model as lm
from fidgpt.model import GELU, LoRALinear, SwiGLU
from fidgpt.model.moe.grouped import grouped_linear
from fidgpt.model.reports import collecting
from fidgpt.train import BFloat16

pytestmark = pytest.mark.xdist_group("transformers")  # whose import takes seconds
HIDDEN, EXPERTS, TOP_K, FFN = 32, 8, 3, 24
SIZES: dict[str, Any] = {"hidden_dim": HIDDEN, "num_experts": EXPERTS}


def gated(**options: Any) -> lm.GatedExperts:
    return lm.GatedExperts(**{**SIZES, "ffn_dim": FFN, **options})


def softmax(**options: Any) -> lm.SoftmaxRouter:
    return lm.SoftmaxRouter(**{**SIZES, "top_k": TOP_K, **options})


def mixture(
    router: lm.Router | None = None, experts: lm.Experts | None = None, **options: Any
) -> lm.MoE:
    """A mixture whose choices are far apart."""
    router, experts = router or softmax(), experts or gated()
    return filled(lm.MoE(num_experts=EXPERTS, router=router, experts=experts, **options), std=0.5)


def tokens(*shape: int, hidden: int = HIDDEN) -> Tensor:
    return drawn(*shape, hidden, seed=1)


def one_by_one(moe: lm.MoE, x: Tensor) -> Tensor:
    """What each token's experts compute, added up in a loop over tokens."""
    routing, experts = moe.router(x), moe.experts
    assert isinstance(experts, lm.GatedExperts)
    out = torch.zeros_like(x)
    for i in range(len(x)):
        for expert, weight in zip(routing.experts[i], routing.weights[i], strict=True):
            gate, up, down = (w[expert] for w in (experts.gate, experts.up, experts.down))
            out[i] += weight * (F.silu(x[i] @ gate.T) * (x[i] @ up.T) @ down.T)
    return out


@pytest.mark.parametrize("sizes", [(16, 24), (6, 10)], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_token_gets_to_all_its_experts_and_gradients_get_back(sizes, dtype):
    hidden, ffn = sizes
    moe = mixture(softmax(hidden_dim=hidden), gated(hidden_dim=hidden, ffn_dim=ffn)).to(dtype)
    x = tokens(5, hidden=hidden).to(dtype).requires_grad_()  # some experts get nothing
    weights = drawn(5, hidden, seed=2).to(dtype)
    results = []
    for out in (moe(x), one_by_one(moe, x)):
        gradients = torch.autograd.grad((out * weights).sum(), [x, *moe.parameters()])
        results.append([out, *gradients])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [(3, 0, 20, 7), (9, 9, 9, 9), (17, 16, 0, 300), (0, 0, 0, 0)])
@pytest.mark.parametrize("widths", [(8, 12), (1024, 512)])  # the large ones are products of each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_products_of_groups_are_those_of_each_group(sizes, widths, dtype):
    inside, outside = widths
    rows = drawn(sum(sizes), inside, seed=0).to(dtype).requires_grad_()
    weight = drawn(len(sizes), outside, inside, seed=1).to(dtype).requires_grad_()
    ends = torch.tensor(sizes).cumsum(0).int()
    owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    out = grouped_linear(rows, weight, lm.Groups(owners, ends))
    expected = torch.cat([x @ w.T for x, w in zip(rows.split(sizes), weight, strict=True)])
    above = drawn(sum(sizes), outside, seed=2).to(dtype)
    for ours, theirs in zip(
        [out, *torch.autograd.grad(out, [rows, weight], above)],
        [expected, *torch.autograd.grad(expected, [rows, weight], above)],
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_router_decides_in_float32_whatever_it_reads():
    router = mixture().router.bfloat16()
    assert router(tokens(3).bfloat16()).weights.dtype == torch.float32


def test_a_selection_bias_moves_against_the_load():
    part = lm.SelectionBias(num_experts=4, rate=0.5)
    part.move(torch.tensor([4, 0, 2, 2]))
    part.move(torch.tensor([4, 0, 1, 3]))
    assert part.bias.tolist() == [-1.0, 1.0, 0.5, -0.5]


def test_the_bias_of_a_bfloat16_replica_is_that_of_the_model():
    selection_bias = lm.SelectionBias(num_experts=EXPERTS)
    moe = mixture(softmax(selection_bias=selection_bias))
    replica = BFloat16().replica(moe)
    replica.settle(torch.arange(EXPERTS))
    assert selection_bias.bias[0] == torch.tensor(0.001)
    assert "router.selection_bias.bias" in moe.state_dict()
    assert torch.equal(replica.router.weight, moe.router.weight)
    assert replica.router.weight is not moe.router.weight
    assert replica.experts.up.dtype == torch.bfloat16
    assert replica(tokens(3).bfloat16()).dtype == torch.bfloat16


def balanced() -> lm.Routing:
    """Sixteen tokens in two sequences, of which two go to each expert."""
    logits = torch.full((2, 8, EXPERTS), 0.5)
    experts = torch.arange(16).reshape(2, 8, 1) % EXPERTS
    return lm.Routing(experts, torch.ones(2, 8, 1), logits.softmax(-1), logits)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (lm.LoadBalancingLoss(weight=0.1), 0.1),
        (lm.SequenceBalancingLoss(weight=0.1), 0.1),
        (lm.RouterZLoss(weight=0.1), 0.1 * (0.5 + torch.log(torch.tensor(8.0))) ** 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_loss_is_its_weight_where_all_is_even(part, expected):
    with collecting() as reports:
        part(balanced())
    (value,) = reports.losses.values()
    torch.testing.assert_close(value, torch.as_tensor(expected))


def test_sequences_are_balanced_one_by_one():
    routing = balanced()
    experts = torch.arange(2).reshape(2, 1, 1).expand(2, 8, 1)  # each sequence at one expert
    with collecting() as reports:
        scores = F.one_hot(experts.squeeze(-1), EXPERTS).float()
        lm.SequenceBalancingLoss(weight=1.0)(routing._replace(experts=experts, scores=scores))
    assert reports.losses["moe/sequence_balance"] == EXPERTS


def test_it_reports_in_training_alone():
    moe, x = mixture(balancing=[lm.LoadBalancingLoss(), lm.RouterZLoss()]), tokens(2, 5)
    with collecting() as reports:
        moe.eval()(x)
    assert not reports.losses and not reports.tallies
    with collecting() as reports:
        moe.train()(x)
    assert set(reports.losses) == {"moe/balance", "moe/z"}
    tally = reports.tallies[moe]
    assert tally.sum() == 2 * 5 * TOP_K
    load = moe.settle(tally)
    torch.testing.assert_close(load["moe/load"], tally / tally.float().mean())
    assert load["moe/load_max"] == load["moe/load"].max()


LORA: Any = partial(lm.StackedLoRA, rank=3, alpha=12.0)
KINDS: dict[str, Any] = {"gated": (lm.GatedExperts, SwiGLU), "plain": (lm.PlainExperts, GELU)}
X = tokens(2, 7).double()


def stacked(kind: str = "gated", **options: Any) -> lm.MoE:
    """A mixture of stacked experts with adapters and biases, all away from their start."""
    options = {"adapter": LORA, "bias": True} | options
    return mixture(experts=KINDS[kind][0](**SIZES, ffn_dim=FFN, **options)).double()


def test_adapted_experts_start_as_plain_ones_of_the_same_seed():
    with torch.device("meta"):
        plain, adapted = stacked(adapter=None), stacked()
    missing, unexpected = started(adapted).load_state_dict(
        started(plain).state_dict(), strict=False
    )
    assert not unexpected and all(name.rpartition(".")[2].startswith("lora_") for name in missing)
    assert torch.equal(adapted(X), plain(X))


@pytest.mark.parametrize("kind", KINDS)
def test_each_expert_computes_what_an_mlp_with_adapters_does(kind):
    moe, linear = stacked(kind), partial(LoRALinear, rank=3, alpha=12.0)
    make = partial(KINDS[kind][1], hidden_dim=HIDDEN, ffn_dim=FFN, bias=True, linear=linear)
    separate = mixture(experts=lm.SeparateExperts(num_experts=EXPERTS, expert=make)).double()
    separate.router.load_state_dict(moe.router.state_dict())
    experts = dict(moe.experts.named_parameters())
    with torch.no_grad():
        for path, parameter in separate.experts.named_parameters():
            _, number, name, half = path.split(".")
            ours = {"weight": name, "bias": f"{name}_bias"}.get(half, f"adapters.{name}.{half}")
            parameter.copy_(experts[ours][int(number)])
    torch.testing.assert_close(moe(X), separate(X))


@pytest.mark.parametrize("adapter", [None, LORA])
def test_the_experts_that_are_not_chosen_are_idle(adapter):
    with torch.device("meta"):
        moe = mixture(experts=gated(adapter=adapter))
    each = 3 * (HIDDEN * FFN + (adapter is not None) * 3 * (HIDDEN + FFN))
    assert moe.own_idle_parameters() == (EXPERTS - TOP_K) * each


def test_with_room_enough_nothing_is_dropped():
    moe, x = mixture(), tokens(2, 11).requires_grad_()
    results = []
    for dispatch in (moe.dispatch, lm.Capacity(factor=EXPERTS / TOP_K), lm.Capacity(factor=1e12)):
        moe.dispatch = dispatch
        with collecting() as reports:
            out = moe(x)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *moe.parameters()])])
        assert reports.metrics.get("moe/dropped", 0) == 0
    for dropless, *roomy in zip(*results, strict=True):
        assert all((one - dropless).norm() <= 1e-5 * dropless.norm() for one in roomy)


def test_outside_of_training_there_is_room_for_all():
    moe, x = mixture(), tokens(2, 11)
    expected = moe(x)
    moe.dispatch = lm.Capacity(factor=0.5)
    assert not torch.allclose(moe.train()(x), expected)
    with collecting() as reports:
        assert torch.equal(moe.eval()(x), expected)
    assert not reports.metrics


def test_late_tokens_and_second_choices_are_dropped_first():
    experts = lm.SeparateExperts(num_experts=2, expert=nn.Identity)
    x, weights = torch.ones(4, 1), torch.tensor([[1.0, 10.0]]).expand(4, 2)
    chosen = torch.tensor([[0, 1], [0, 1], [0, 1], [1, 0]])
    with collecting() as reports:
        out = lm.Capacity(factor=0.5)(x, chosen, weights, experts)  # room for two tokens each
    assert out.flatten().tolist() == [11.0, 1.0, 0.0, 1.0]
    assert reports.metrics["moe/dropped"] == 0.5


def test_the_balancing_loss_is_that_of_transformers_for_each_choice():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    routing = softmax()(30 * drawn(2, 9, HIDDEN))
    with collecting() as reports:
        lm.LoadBalancingLoss(weight=0.5)(routing)
    theirs = load_balancing_loss_func((routing.logits.flatten(0, 1),), EXPERTS, TOP_K)
    assert isinstance(theirs, Tensor)
    torch.testing.assert_close(reports.losses["moe/balance"], 0.5 * theirs / TOP_K)

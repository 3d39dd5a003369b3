"""Mixtures of experts against plain loops, closed forms and transformers' modules."""

import importlib
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_models import drawn, filled, started
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fidgpt import model as lm
from fidgpt.cost import flops_per_token
from fidgpt.model import GELU, LoRALinear, SwiGLU, is_adapter
from fidgpt.model.reports import collecting
from fidgpt.train import BFloat16

pytestmark = pytest.mark.xdist_group("transformers")  # whose import takes seconds
Named = Mapping[str, Tensor]
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


def mixture_of(experts: lm.Experts) -> lm.MoE:
    """Weights that sum to 1 over experts that are all the same."""
    return lm.MoE(num_experts=EXPERTS, router=softmax(), experts=experts)


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


def test_it_can_be_built_on_the_meta_device():
    with torch.device("meta"):
        moe = mixture(softmax(selection_bias=lm.SelectionBias(num_experts=EXPERTS), bias=True))
        assert moe(tokens(2, 3)).shape == (2, 3, HIDDEN)
    assert started(moe)(tokens(2, 3)).isfinite().all()


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


def test_separate_experts_cost_as_much_as_stacked_ones():
    make = partial(SwiGLU, hidden_dim=HIDDEN, ffn_dim=FFN)
    experts = lm.SeparateExperts(num_experts=EXPERTS, expert=make)
    separate, stacked = mixture_of(experts), mixture_of(gated())
    assert flops_per_token(separate, seq_len=8) == flops_per_token(stacked, seq_len=8)
    assert separate.own_idle_parameters() == stacked.own_idle_parameters()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: softmax(top_k=9), r"top_k=9 must be from 1 to num_experts=8"),
        (lambda: softmax(groups=lm.GroupLimit(num_groups=3, top_groups=1)), r"num_experts=8 .*=3"),
        (lambda: softmax(groups=lm.GroupLimit(num_groups=8, top_groups=1)), r"fewer than top_k=3"),
        (lambda: lm.GroupLimit(num_groups=2, top_groups=3), r"top_groups=3 must be from 1"),
        (lambda: lm.Capacity(factor=0.0), r"factor=0.0"),
        (lambda: lm.StackedLoRA(4, 24, 16, rank=0), "rank=0"),
        (lambda: lm.StackedLoRA(4, 24, 16, rank=1, dropout=1.0), "dropout=1.0"),
        (lambda: mixture(experts=gated(num_experts=4)), r"num_experts=8 must equal .* 8 and .* 4;"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


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


@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_compute_the_same(kind):
    moe, merged = stacked(kind), stacked(kind, adapter=None)
    state = {name: one for name, one in moe.state_dict().items() if "lora_" not in name}
    experts = moe.experts
    assert isinstance(experts, lm.StackedExperts)
    for name in experts.adapters:
        state[f"experts.{name}"] = experts.merged_weight(name)
    merged.load_state_dict(state)
    torch.testing.assert_close(merged(X), moe(X))


def test_adapters_learn_while_all_else_stays():
    moe = stacked()
    for name, parameter in moe.named_parameters():
        parameter.requires_grad_(is_adapter(name, parameter))
    moe(X).square().sum().backward()
    learning = {name for name, one in moe.named_parameters() if one.grad is not None}
    assert learning == {
        f"experts.adapters.{name}.lora_{half}" for name in ("gate", "up", "down") for half in "ab"
    }


def test_adapter_dropout_applies_in_training_only():
    moe = stacked(adapter=partial(LORA, dropout=0.5))
    assert not torch.equal(moe(X), moe(X))
    moe.eval()
    assert torch.equal(moe(X), moe(X))


@pytest.mark.parametrize("adapter", [None, LORA])
def test_the_cost_is_that_of_the_chosen_experts(adapter):
    with torch.device("meta"):
        shared = SwiGLU(hidden_dim=HIDDEN, ffn_dim=FFN)
        moe = mixture(experts=gated(adapter=adapter), shared=shared)
        with FlopCounterMode(display=False) as counter:
            moe(tokens(4, 32))
    assert flops_per_token(moe, seq_len=32) == counter.get_total_flops() / 128
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


COMMON: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_experts_per_tok": TOP_K,
    "moe_intermediate_size": FFN,
}
DEEPSEEK = {"n_routed_experts": EXPERTS, "n_group": 4, "topk_group": 2}


def theirs(name: str, kind: str, *, std: float = 0.3, **options: Any) -> Any:
    """A module of transformers, such as `theirs("Mixtral", "SparseMoeBlock")`."""
    import transformers

    folder = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    config = getattr(transformers, f"{name}Config")(**COMMON | options)
    return filled(getattr(module, name + kind)(config).eval(), std=std, seed=1)


def test_mixtral():
    reference = theirs(
        "Mixtral", "SparseMoeBlock", num_local_experts=EXPERTS, intermediate_size=FFN
    )
    same(reference, mixture(softmax()), _stacked)


@pytest.mark.parametrize("normalize", [True, False])
def test_qwen3_moe(normalize):
    options: dict[str, Any] = dict(num_experts=EXPERTS, norm_topk_prob=normalize)
    reference = theirs("Qwen3Moe", "SparseMoeBlock", **options)
    same(reference, mixture(softmax(normalize=normalize)), _stacked)


def test_qwen2_moe_with_a_gate_on_the_shared_expert():
    options: dict[str, Any] = dict(num_experts=EXPERTS, shared_expert_intermediate_size=40)
    reference = theirs("Qwen2Moe", "SparseMoeBlock", **options)
    shared = lm.GatedShared(hidden_dim=HIDDEN, mlp=SwiGLU(hidden_dim=HIDDEN, ffn_dim=40))
    names = _mlp_names("shared_expert", "shared.mlp")
    names["shared_expert_gate.weight"] = "shared.gate.weight"
    ours = mixture(softmax(normalize=False), shared=shared)
    same(reference, ours, partial(_stacked, names=names))


@pytest.mark.parametrize("groups", [None, lm.GroupLimit(num_groups=4, top_groups=2)])
def test_deepseek_v2(groups):
    method = "greedy" if groups is None else "group_limited_greedy"
    options: dict[str, Any] = dict(
        n_shared_experts=2, routed_scaling_factor=1.7, topk_method=method
    )
    reference = theirs("DeepseekV2", "Moe", **DEEPSEEK, **options)
    shared = SwiGLU(hidden_dim=HIDDEN, ffn_dim=2 * FFN)
    ours = mixture(softmax(groups=groups, normalize=False, scale=1.7), shared=shared)
    same(reference, ours, partial(_stacked, names=_mlp_names("shared_experts", "shared")))


@pytest.mark.parametrize("spread", [0.1, 2.0])
def test_deepseek_v3(spread):
    options: dict[str, Any] = dict(
        n_shared_experts=1, routed_scaling_factor=2.5, norm_topk_prob=True
    )
    reference = theirs("DeepseekV3", "MoE", **DEEPSEEK, **options)
    bias = reference.gate.e_score_correction_bias
    bias.copy_(drawn(EXPERTS) * spread)  # with the larger one, scores below zero compete
    selection = lm.SelectionBias(num_experts=EXPERTS)
    selection.bias.copy_(bias)
    groups = lm.GroupLimit(num_groups=4, top_groups=2, best=2)
    choice: dict[str, Any] = dict(groups=groups, selection_bias=selection, scale=2.5)
    shared = SwiGLU(hidden_dim=HIDDEN, ffn_dim=FFN)
    ours = mixture(lm.SigmoidRouter(top_k=TOP_K, **SIZES, **choice), shared=shared)
    same(reference, ours, partial(_stacked, names=_mlp_names("shared_experts", "shared")))


def test_gpt_oss():
    options: dict[str, Any] = dict(num_local_experts=EXPERTS, intermediate_size=FFN)
    reference = theirs("GptOss", "MLP", std=2.0, **options)  # so large that the clamp cuts
    experts = lm.GatedExperts(ffn_dim=FFN, gating=lm.ClampedSwiGLU(), bias=True, **SIZES)
    ours = lm.MoE(num_experts=EXPERTS, router=softmax(bias=True), experts=experts)
    same(reference, ours, _gpt_oss, call=lambda x: reference(x)[0])


def test_the_balancing_loss_is_that_of_transformers_for_each_choice():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    routing = softmax()(30 * drawn(2, 9, HIDDEN))
    with collecting() as reports:
        lm.LoadBalancingLoss(weight=0.5)(routing)
    theirs = load_balancing_loss_func((routing.logits.flatten(0, 1),), EXPERTS, TOP_K)
    assert isinstance(theirs, Tensor)
    torch.testing.assert_close(reports.losses["moe/balance"], 0.5 * theirs / TOP_K)


def same(
    reference: Any, ours: lm.MoE, translated: Callable[[Named], Named], *, call: Any = None
) -> None:
    """Gives ours the weights of the reference and compares outputs and gradients.

    `translated` gives the reference's tensors, weights or gradients, our names and shapes.
    """
    _copy(ours, translated(dict(reference.named_parameters())))
    out, inner, gradients = _run(call or reference, reference)
    own_out, own_inner, own_gradients = _run(ours, ours)
    _close(own_out, out, 1e-5)
    _close(own_inner, inner, 1e-4)
    expected = translated(gradients)
    assert own_gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        _close(own_gradients[name], gradient, 1e-4)


def _stacked(theirs: Named, names: Mapping[str, str] = MappingProxyType({})) -> Named:
    """Names of most families; `names` are ours of what is beside router and experts."""
    gate, up = theirs["experts.gate_up_proj"].chunk(2, dim=1)
    own = {
        "router.weight": theirs["gate.weight"],
        "experts.gate": gate,
        "experts.up": up,
        "experts.down": theirs["experts.down_proj"],
    }
    return own | {name: theirs[other] for other, name in names.items()}


def _gpt_oss(theirs: Named) -> Named:
    joined, biases = theirs["experts.gate_up_proj"].mT, theirs["experts.gate_up_proj_bias"]
    return {
        "router.weight": theirs["router.weight"],
        "router.bias": theirs["router.bias"],
        "experts.gate": joined[:, ::2],
        "experts.up": joined[:, 1::2],
        "experts.down": theirs["experts.down_proj"].mT,
        "experts.gate_bias": biases[:, ::2],
        "experts.up_bias": biases[:, 1::2],
        "experts.down_bias": theirs["experts.down_proj_bias"],
    }


def _mlp_names(theirs: str, ours: str) -> dict[str, str]:
    parts = ("gate", "up", "down")
    return {f"{theirs}.{part}_proj.weight": f"{ours}.{part}.weight" for part in parts}


@torch.no_grad()
def _copy(module: nn.Module, tensors: Named) -> None:
    own = dict(module.named_parameters())
    assert own.keys() == tensors.keys()
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def _run(call: Any, module: nn.Module) -> tuple[Tensor, Tensor, Named]:
    x = drawn(2, 21, HIDDEN, seed=2).requires_grad_()
    out = call(x)
    (out * drawn(*out.shape, seed=3)).sum().backward()
    assert x.grad is not None
    return out, x.grad, {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def _close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert theirs.abs().max() > 0
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


def test_llama4_weights_the_inputs_of_experts():
    from transformers import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4TextMoe

    sizes: dict[str, Any] = {"hidden_size": HIDDEN, "intermediate_size": FFN}
    config = Llama4TextConfig(num_experts_per_tok=TOP_K, num_local_experts=EXPERTS, **sizes)
    reference = filled(Llama4TextMoe(config).eval(), std=0.3, seed=1)
    ours = mixture(
        lm.SigmoidRouter(top_k=TOP_K, normalize=False, **SIZES),
        shared=SwiGLU(hidden_dim=HIDDEN, ffn_dim=FFN),
    )
    ours.dispatch = lm.weighted_inputs
    same(reference, ours, _llama4, call=lambda x: reference(x)[0].view_as(x))


def _llama4(state: Named) -> Named:
    gate, up = state["experts.gate_up_proj"].mT.chunk(2, dim=1)
    names = {"gate": gate, "up": up, "down": state["experts.down_proj"].mT}
    shared = {f"shared.{name}.weight": state[f"shared_expert.{name}_proj.weight"] for name in names}
    experts = {f"experts.{name}": one for name, one in names.items()}
    return {**experts, **shared, "router.weight": state["router.weight"]}


def test_sparse_mixer_weights_experts_by_those_close_to_the_best_one():
    router = lm.SparseMixerRouter(top_k=2, tolerance=0.2, hidden_dim=4, num_experts=4)
    with torch.no_grad():
        router.weight.copy_(torch.eye(4))
    routing = router(torch.tensor([2.0, 1.9, 1.0, -3.0]))
    assert routing.experts.tolist() == [0, 1]
    # 2.0 and 1.9 are within 20 % of the best one; once that is gone, 1.9 is alone.
    expected = [1 / (1 + math.exp(-0.1)), 1.0]
    torch.testing.assert_close(routing.weights, torch.tensor(expected))


def test_a_bias_on_logits_changes_the_choice_but_not_the_weights():
    router = lm.LogitBiasRouter(
        top_k=1,
        hidden_dim=2,
        num_experts=2,
        normalize=False,
        selection_bias=lm.SelectionBias(num_experts=2),
    )
    with torch.no_grad():
        router.weight.copy_(torch.eye(2))
    assert router.selection_bias is not None
    router.selection_bias.bias.copy_(torch.tensor([0.0, 2.0]))
    # Of scores, 0.98 and 0.73 would differ by less than the bias; of logits, 4 and 1 by more.
    routing = router(torch.tensor([4.0, 1.0]))
    assert routing.experts.tolist() == [0]
    torch.testing.assert_close(routing.weights, torch.tensor([4.0]).sigmoid())

"""The mixture against transformers' modules of six families, with the same weights."""

import importlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
import torch
from small_models import drawn, filled
from torch import Tensor, nn

from fidgpt.model import SwiGLU, moe
from fidgpt.model.reports import collecting

Named = Mapping[str, Tensor]
pytestmark = pytest.mark.xdist_group("transformers")  # whose import takes seconds
HIDDEN, EXPERTS, TOP_K, FFN = 32, 8, 3, 24
SIZES: dict[str, Any] = {"hidden_dim": HIDDEN, "num_experts": EXPERTS}
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


def softmax(**options: Any) -> moe.SoftmaxRouter:
    return moe.SoftmaxRouter(top_k=TOP_K, **SIZES, **options)


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
    shared = moe.GatedShared(hidden_dim=HIDDEN, mlp=SwiGLU(hidden_dim=HIDDEN, ffn_dim=40))
    names = _mlp_names("shared_expert", "shared.mlp")
    names["shared_expert_gate.weight"] = "shared.gate.weight"
    ours = mixture(softmax(normalize=False), shared=shared)
    same(reference, ours, partial(_stacked, names=names))


@pytest.mark.parametrize("groups", [None, moe.GroupLimit(num_groups=4, top_groups=2)])
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
    selection = moe.SelectionBias(num_experts=EXPERTS)
    selection.bias.copy_(bias)
    groups = moe.GroupLimit(num_groups=4, top_groups=2, best=2)
    choice: dict[str, Any] = dict(groups=groups, selection_bias=selection, scale=2.5)
    shared = SwiGLU(hidden_dim=HIDDEN, ffn_dim=FFN)
    ours = mixture(moe.SigmoidRouter(top_k=TOP_K, **SIZES, **choice), shared=shared)
    same(reference, ours, partial(_stacked, names=_mlp_names("shared_experts", "shared")))


def test_gpt_oss():
    options: dict[str, Any] = dict(num_local_experts=EXPERTS, intermediate_size=FFN)
    reference = theirs("GptOss", "MLP", std=2.0, **options)  # so large that the clamp cuts
    experts = moe.GatedExperts(ffn_dim=FFN, gating=moe.ClampedSwiGLU(), bias=True, **SIZES)
    ours = moe.MoE(num_experts=EXPERTS, router=softmax(bias=True), experts=experts)
    same(reference, ours, _gpt_oss, call=lambda x: reference(x)[0])


def test_the_balancing_loss_is_that_of_transformers_for_each_choice():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    routing = softmax()(30 * drawn(2, 9, HIDDEN))
    with collecting() as reports:
        moe.LoadBalancingLoss(weight=0.5)(routing)
    theirs = load_balancing_loss_func((routing.logits.flatten(0, 1),), EXPERTS, TOP_K)
    assert isinstance(theirs, Tensor)
    torch.testing.assert_close(reports.losses["moe/balance"], 0.5 * theirs / TOP_K)


def mixture(router: moe.Router, *, shared: nn.Module | None = None) -> moe.MoE:
    """A mixture of SwiGLUs around a router."""
    experts = moe.GatedExperts(ffn_dim=FFN, **SIZES)
    return moe.MoE(num_experts=EXPERTS, router=router, experts=experts, shared=shared)


def same(
    reference: Any, ours: moe.MoE, translated: Callable[[Named], Named], *, call: Any = None
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

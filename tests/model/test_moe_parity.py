"""The mixture against transformers' modules of six families, with the same weights."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
import torch
from small_models import drawn, filled
from torch import Tensor, nn

from fidgpt.model import SwiGLU
from fidgpt.model.moe import (
    ClampedSwiGLU,
    GatedExperts,
    GatedShared,
    GroupLimit,
    LoadBalancingLoss,
    MoE,
    Router,
    SelectionBias,
    SigmoidRouter,
    SoftmaxRouter,
)
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
DEEPSEEK = COMMON | {"n_routed_experts": EXPERTS, "n_group": 4, "topk_group": 2}


def test_mixtral():
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(num_local_experts=EXPERTS, intermediate_size=FFN, **COMMON)
    router = SoftmaxRouter(top_k=TOP_K, **SIZES)
    same(_with_weights(MixtralSparseMoeBlock(config)), mixture(router), _stacked)


@pytest.mark.parametrize("normalize", [True, False])
def test_qwen3_moe(normalize):
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    config = Qwen3MoeConfig(num_experts=EXPERTS, norm_topk_prob=normalize, **COMMON)
    router = SoftmaxRouter(top_k=TOP_K, normalize=normalize, **SIZES)
    same(_with_weights(Qwen3MoeSparseMoeBlock(config)), mixture(router), _stacked)


def test_qwen2_moe_with_a_gate_on_the_shared_expert():
    from transformers import Qwen2MoeConfig
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

    config = Qwen2MoeConfig(num_experts=EXPERTS, shared_expert_intermediate_size=40, **COMMON)
    shared = GatedShared(hidden_dim=HIDDEN, mlp=SwiGLU(hidden_dim=HIDDEN, ffn_dim=40))
    router = SoftmaxRouter(top_k=TOP_K, normalize=False, **SIZES)
    names = _mlp_names("shared_expert", "shared.mlp")
    names["shared_expert_gate.weight"] = "shared.gate.weight"
    reference = _with_weights(Qwen2MoeSparseMoeBlock(config))
    same(reference, mixture(router, shared=shared), partial(_stacked, names=names))


@pytest.mark.parametrize("groups", [None, GroupLimit(num_groups=4, top_groups=2)])
def test_deepseek_v2(groups):
    from transformers import DeepseekV2Config
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe

    method = "greedy" if groups is None else "group_limited_greedy"
    config = DeepseekV2Config(
        n_shared_experts=2, routed_scaling_factor=1.7, topk_method=method, **DEEPSEEK
    )
    shared = SwiGLU(hidden_dim=HIDDEN, ffn_dim=2 * FFN)
    router = SoftmaxRouter(top_k=TOP_K, groups=groups, normalize=False, scale=1.7, **SIZES)
    names = _mlp_names("shared_experts", "shared")
    reference = _with_weights(DeepseekV2Moe(config))
    same(reference, mixture(router, shared=shared), partial(_stacked, names=names))


@pytest.mark.parametrize("spread", [0.1, 2.0])
def test_deepseek_v3(spread):
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = DeepseekV3Config(
        n_shared_experts=1, routed_scaling_factor=2.5, norm_topk_prob=True, **DEEPSEEK
    )
    reference = _with_weights(DeepseekV3MoE(config))
    bias = reference.gate.e_score_correction_bias
    bias.copy_(torch.randn(EXPERTS) * spread)  # with the larger one, scores below zero compete
    router = SigmoidRouter(
        top_k=TOP_K,
        groups=GroupLimit(num_groups=4, top_groups=2, best=2),
        selection_bias=SelectionBias(num_experts=EXPERTS),
        scale=2.5,
        **SIZES,
    )
    assert router.selection_bias is not None
    router.selection_bias.bias.copy_(bias)
    shared = SwiGLU(hidden_dim=HIDDEN, ffn_dim=FFN)
    names = _mlp_names("shared_experts", "shared")
    same(reference, mixture(router, shared=shared), partial(_stacked, names=names))


def test_gpt_oss():
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    config = GptOssConfig(num_local_experts=EXPERTS, intermediate_size=FFN, **COMMON)
    reference = _with_weights(GptOssMLP(config), std=2.0)  # so large that the clamp cuts
    experts = GatedExperts(ffn_dim=FFN, gating=ClampedSwiGLU(), bias=True, **SIZES)
    router = SoftmaxRouter(top_k=TOP_K, bias=True, **SIZES)
    ours = MoE(num_experts=EXPERTS, router=router, experts=experts)
    same(reference, ours, _gpt_oss, call=lambda x: reference(x)[0])


def test_the_balancing_loss_is_that_of_transformers_for_each_choice():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    torch.manual_seed(0)
    router = SoftmaxRouter(top_k=TOP_K, **SIZES)
    routing = router(30 * torch.randn(2, 9, HIDDEN))
    with collecting() as reports:
        LoadBalancingLoss(weight=0.5)(routing)
    theirs = load_balancing_loss_func((routing.logits.flatten(0, 1),), EXPERTS, TOP_K)
    assert isinstance(theirs, Tensor)
    torch.testing.assert_close(reports.losses["moe/balance"], 0.5 * theirs / TOP_K)


def mixture(router: Router, *, shared: nn.Module | None = None) -> MoE:
    """A mixture of SwiGLUs around a router."""
    experts = GatedExperts(ffn_dim=FFN, **SIZES)
    return MoE(num_experts=EXPERTS, router=router, experts=experts, shared=shared)


def same(
    reference: Any, ours: MoE, translated: Callable[[Named], Named], *, call: Any = None
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


def _with_weights(module: Any, *, std: float = 0.3) -> Any:
    return filled(module.eval(), std=std, seed=1)


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

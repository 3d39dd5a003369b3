"""DeepSeek V2 (2024, arXiv:2405.04434): latent attention and a softmax router."""

import fiddle as fdl

from fidgpt.configs import deepseek
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_expert_groups, use_sequence_balancing
from fidgpt.model import LanguageModel, Router, YaRN
from fidgpt.train import Trainer

_FREE, _LIMITED = "greedy", "group_limited_greedy"


@variant_of(deepseek.deepseek)
def v2(
    cfg: fdl.Config[Trainer],
    *,
    selection: str = _FREE,
    num_groups: int | None = None,
    top_groups: int | None = None,
) -> None:
    """A decoder that selects experts among all of them, or from the groups with the best ones.

    Raises:
      ValueError: `selection` is unknown, or needs the numbers of groups.
    """
    if selection == _LIMITED and num_groups and top_groups:
        use_expert_groups(cfg, num_groups, top_groups)
    elif selection != _FREE:
        raise ValueError(f"{selection=}, {num_groups=}: use {_FREE}, or {_LIMITED} with groups.")
    use_sequence_balancing(cfg, weight=0.001)


def _selection(model: LanguageModel) -> str:
    router = next(module for module in model.modules() if isinstance(module, Router))
    return _LIMITED if router.groups else _FREE


HUB = deepseek.near_deepseek(
    "deepseek_v2",
    v2,
    settings={"selection": "topk_method"},
    fixed={"mlp_bias": (False,), "norm_topk_prob": (False,), "scoring_func": ("softmax",)},
    defaults={"first_k_dense_replace": 0, "n_routed_experts": 64, "n_shared_experts": 2}
    | {"moe_intermediate_size": 1407},
    readings={"selection": _selection},
    constants={"num_experts_per_tok": 1},  # required, even if no layer has experts
    whole_heads=True,
)


def deepseek_v2_lite() -> fdl.Config[Trainer]:
    """16 billion parameters, 2.7 billion per token."""
    sizes = {"hidden_dim": 2048, "num_layers": 27, "num_heads": 16, "ffn_dim": 10_944}
    experts = {"num_experts": 64, "num_shared": 2, "top_k": 6, "expert_ffn_dim": 1408}
    longer = fdl.Config(YaRN, factor=40.0, original_seq_len=4096, amplitude=1.0, sharpness=0.707)
    others = {"vocab_size": 102_400, "query_rank": None, "first_dense": 1}
    return v2(**sizes, **experts, **others, scaling=longer)

"""Mixtures of experts."""

from typing import Any

import fiddle as fdl

from fidgpt.fiddlers.patterns import repeated
from fidgpt.graph import ConfigError, clone_part, find, swapped, title
from fidgpt.graph.fiddle import parameter_names
from fidgpt.model import Block, LoRALinear, Transformer
from fidgpt.model.mlp import (
    GELU,
    MLP,
    GatedMLP,
    GeGLU,
    SquaredReLU,
    SwiGLU,
    gelu_tanh,
    squared_relu,
)
from fidgpt.model.moe import (
    Capacity,
    Gated,
    GatedExperts,
    GatedShared,
    GroupLimit,
    LoadBalancingLoss,
    MicroBatchBalancingLoss,
    MoE,
    PlainExperts,
    RouterZLoss,
    SelectionBias,
    SeparateExperts,
    SequenceBalancingLoss,
    SigmoidRouter,
    SoftmaxRouter,
    StackedLoRA,
    geglu,
    swiglu,
)
from fidgpt.tags import HiddenDim, NumExperts, TopK
from fidgpt.train import Trainer

__all__ = [
    "use_expert_capacity",
    "use_expert_groups",
    "use_loss_free_balancing",
    "use_micro_batch_balancing",
    "use_moe",
    "use_sequence_balancing",
    "use_shared_expert",
    "use_sigmoid_router",
]

# The gating functions of gated MLP classes.
_GATED = {SwiGLU: swiglu, GeGLU: geglu}
_PLAIN = {GELU: gelu_tanh, SquaredReLU: squared_relu}
# The argument for adapters and their class, in MLPs and in experts.
_ADAPTERS = {("linear", LoRALinear): ("adapter", StackedLoRA)}
_ADAPTERS |= {there: here for here, there in _ADAPTERS.items()}


def use_moe(
    cfg: fdl.Config[Trainer],
    num_experts: int = 8,
    top_k: int = 2,
    every: int = 1,
    first_dense: int = 0,
    ffn_dim: int | None = None,
) -> None:
    """Replace MLPs by mixtures of `num_experts` experts, with `top_k` per token.

    Experts have the form of the replaced MLP. The router is a softmax, with a load-balancing loss
    and a z-loss. An existing mixture keeps its other settings, except for groups that no longer
    fit.

    Args:
      cfg: the graph to change.
      num_experts: experts per layer.
      top_k: experts per token.
      every: the last of every `every` layers is a mixture; the others have an MLP.
      first_dense: number of first layers that always have an MLP.
      ffn_dim: intermediate width of an expert; defaults to the width of the MLP.
    """
    if every < 1 or first_dense < 0:
        raise ConfigError(f"{every=} must be 1 or more layers, and {first_dense=} 0 or more.")
    for model in find(cfg.model, Transformer):
        first, pattern = list(model.first_blocks), list(model.blocks)
        every_layer = [*first, *(pattern[i % len(pattern)] for i in range(len(first), first_dense))]
        dense = [clone_part(block) for block in every_layer[:first_dense]]
        blocks = pattern
        if every > 1:
            blocks = repeated(pattern, every, num_layers=model.num_layers)
        mixed = blocks[every - 1 :: every]
        for block in [*dense, *(block for i, block in enumerate(blocks) if (i + 1) % every)]:
            _use_mlps(block)
        for block in mixed:
            _use_mixtures(block, num_experts=num_experts, top_k=top_k, ffn_dim=ffn_dim)
        model.blocks = blocks
        if dense or first:
            model.first_blocks = dense or ()


def use_shared_expert(cfg: fdl.Config[Trainer], ffn_dim: int | None = None) -> None:
    """Add a shared expert, an MLP for all tokens, by default as wide as an expert."""
    for moe in find(cfg.model, MoE):
        moe.shared = _mlp_of(moe.experts)
        if ffn_dim is not None:
            moe.shared.ffn_dim = ffn_dim


def use_sigmoid_router(cfg: fdl.Config[Trainer]) -> None:
    """Score each expert by a sigmoid, as in DeepSeek-V3."""
    for moe in find(cfg.model, MoE):
        moe.router = swapped(moe.router, SigmoidRouter)


def use_loss_free_balancing(cfg: fdl.Config[Trainer], rate: float = 0.001) -> None:
    """Balance experts by a bias in their selection instead of a loss."""
    for moe in find(cfg.model, MoE):
        moe.router.selection_bias = fdl.ArgFactory(
            SelectionBias, num_experts=NumExperts.new(), rate=rate
        )
        # None keeps the places of the others, which directives name.
        moe.balancing = [
            None if _calls(part, LoadBalancingLoss, MicroBatchBalancingLoss) else part
            for part in moe.balancing
        ]


def use_micro_batch_balancing(cfg: fdl.Config[Trainer]) -> None:
    """Balance experts over each micro-batch of each process, instead of the whole batch.

    This saves the pass that counts the load of several micro-batches, and makes the loss depend on
    their size.
    """
    for moe in find(cfg.model, MoE):
        moe.balancing = [
            swapped(part, MicroBatchBalancingLoss) if _calls(part, LoadBalancingLoss) else part
            for part in moe.balancing
        ]


def use_sequence_balancing(cfg: fdl.Config[Trainer], weight: float = 0.001) -> None:
    """Balance experts by a loss per sequence only (DeepSeek-V2)."""
    for moe in find(cfg.model, MoE):
        moe.balancing = [fdl.ArgFactory(SequenceBalancingLoss, weight=weight)]


def use_expert_groups(
    cfg: fdl.Config[Trainer], num_groups: int = 4, top_groups: int = 2, best: int = 1
) -> None:
    """Limit the experts of a token to `top_groups` of `num_groups` (DeepSeek-V2).

    Groups are ranked by the scores of their `best` experts.
    """
    limit = fdl.Config(GroupLimit, num_groups=num_groups, top_groups=top_groups, best=best)
    for moe in find(cfg.model, MoE):
        moe.router.groups = limit


def use_expert_capacity(cfg: fdl.Config[Trainer], factor: float = 1.25) -> None:
    """Limit an expert to `factor` times its even share of tokens in training, dropping others."""
    for moe in find(cfg.model, MoE):
        moe.dispatch = fdl.ArgFactory(Capacity, factor=factor)


def with_mlp(mlp: Any, kind: Any) -> Any:
    """Return an MLP converted to another class; in a mixture, experts of that kind."""
    if fdl.get_callable(mlp) is not MoE:
        return swapped(mlp, kind)
    is_separate = fdl.get_callable(mlp.experts) is SeparateExperts
    mlp.experts = _experts_of(_adapted(_mlp_of(mlp.experts) if is_separate else mlp.experts, kind))
    if mlp.shared is not None:
        is_gated = fdl.get_callable(mlp.shared) is GatedShared
        holder, name = (mlp.shared, "mlp") if is_gated else (mlp, "shared")
        setattr(holder, name, swapped(getattr(holder, name), kind))
    return mlp


def _calls(part: Any, *kinds: Any) -> bool:
    return isinstance(part, fdl.Buildable) and fdl.get_callable(part) in kinds


def _use_mlps(part: Any) -> None:
    for block in find(part, Block):
        if fdl.get_callable(block.mlp) is MoE:
            block.mlp = _mlp_of(block.mlp.experts)


def _use_mixtures(part: Any, *, num_experts: int, top_k: int, ffn_dim: int | None) -> None:
    for block in find(part, Block):
        if fdl.get_callable(block.mlp) is not MoE:
            block.mlp = _mixture(block.mlp)
        block.mlp.num_experts = num_experts
        block.mlp.router.top_k = top_k
        if not _fits(block.mlp.router.groups, num_experts=num_experts, top_k=top_k):
            block.mlp.router.groups = None
        if ffn_dim is not None:
            block.mlp.experts.ffn_dim = ffn_dim


def _fits(groups: Any, *, num_experts: int, top_k: int) -> bool:
    """Return whether a group limit, if any, fits these numbers of experts."""
    limit: Any = None if groups is None else fdl.build(groups)
    try:
        if limit is not None:
            limit.check(num_experts=num_experts, top_k=top_k)
    except ValueError:
        return False
    return True


def _mixture(mlp: Any) -> Any:
    """Return a mixture whose experts compute what an MLP does."""
    router = fdl.ArgFactory(
        SoftmaxRouter, hidden_dim=HiddenDim.new(), num_experts=NumExperts.new(), top_k=TopK.new()
    )
    if (init := fdl.ordered_arguments(mlp).get("init")) is not None:
        router.init = init
    return type(mlp)(
        MoE,
        num_experts=NumExperts.new(),
        router=router,
        experts=_experts_of(mlp),
        balancing=[fdl.ArgFactory(LoadBalancingLoss), fdl.ArgFactory(RouterZLoss)],
    )


def _experts_of(mlp: Any) -> Any:
    """Return experts that compute what an MLP does, with their number unset."""
    kind = fdl.get_callable(mlp)
    if kind in _GATED:
        experts = _adapted(mlp, GatedExperts)
        experts.gating = _GATED[kind]
    elif kind is GatedMLP:
        experts = _adapted(mlp, GatedExperts)
        experts.gating = fdl.Config(Gated, activation=mlp.activation)
    elif kind in _PLAIN:
        experts = _adapted(mlp, PlainExperts)
        experts.activation = _PLAIN[kind]
    elif kind is MLP:
        experts = _adapted(mlp, PlainExperts)
    else:
        experts = type(mlp)(SeparateExperts, expert=fdl.cast(fdl.Partial, mlp))
    experts.num_experts = NumExperts.new()
    return experts


def _mlp_of(experts: Any) -> Any:
    """Return the MLP that computes what one expert does.

    Raises:
      ConfigError: there is none.
    """
    kind = fdl.get_callable(experts)
    if kind is SeparateExperts:
        return fdl.cast(type(experts), experts.expert)
    if kind is PlainExperts:
        mlps = [mlp for mlp, activation in _PLAIN.items() if activation is experts.activation]
        return _adapted(experts, mlps[0] if mlps else MLP)
    if kind is GatedExperts:
        mlps = [mlp for mlp, gating in _GATED.items() if gating is experts.gating]
        if mlps:
            return _adapted(experts, mlps[0])
        if isinstance(experts.gating, fdl.Buildable) and fdl.get_callable(experts.gating) is Gated:
            mlp = _adapted(experts, GatedMLP)
            mlp.activation = experts.gating.activation
            return mlp
    gating = getattr(experts, "gating", None)
    how = f" with {title(gating)}" if isinstance(gating, fdl.Buildable) else ""
    raise ConfigError(
        f"no MLP computes what {kind.__name__}{how} do. Put use_swiglu, or another of its kind, "
        "before this, or set what is to stand there, such as use:**.mlp.shared=SwiGLU."
    )


def _adapted(part: Any, kind: Any) -> Any:
    """Return a component converted to another class, with its adapters."""
    new, given = swapped(part, kind), fdl.ordered_arguments(part)
    for (name, maker), (other_name, other_maker) in _ADAPTERS.items():
        adapter: Any = given.get(name)
        is_known = isinstance(adapter, fdl.Buildable) and fdl.get_callable(adapter) is maker
        if is_known and other_name in parameter_names(new):
            setattr(new, other_name, swapped(adapter, other_maker))
    return new

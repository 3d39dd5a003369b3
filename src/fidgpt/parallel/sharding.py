"""Sharding of the weights, gradients and optimizer state of a model by torch's FSDP2."""

import contextlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

APART, EXACT, BLOCK, REST = "apart", "exact", "block", "rest"  # kinds of units

# torch.distributed.fsdp is imported where it is used, because its import is slow.


def shard_fully(
    model: nn.Module,
    *,
    mesh: "DeviceMesh",
    dtype: torch.dtype,
    apart: "Mapping[nn.Parameter, DeviceMesh]",
    reshards: bool = True,
) -> None:
    """Shard every parameter of a model on the meta device (FSDP2).

    With torch's `fully_shard`, each block is gathered before it computes and resharded afterwards,
    in the forward and the backward pass (ZeRO stage 3); the rest of the model (embeddings, final
    norm) stays gathered from its forward to its backward pass. Gathered weights have the dtype of
    the precision; shards, gradient reduction and optimizer steps are in float32. (Rajbhandari et
    al., 2020, arXiv:1910.02054; Zhao et al., 2023, arXiv:2304.11277.)

    Each block is an FSDP unit, unless it shares parameters with another module: tied parameters are
    gathered with the model. What learns apart is a unit too, since FSDP gathers for a backward pass
    when the gradient of a unit's output arrives.

    Args:
      model: on the meta device.
      mesh: of one axis, over which it is sharded; or of two, over the first of which it is
        replicated.
      dtype: of gathered weights.
      apart: parameters that other processes share, with their mesh. A module of nothing else, such
        as the experts of a mixture, is a unit of its own, whose gradients are summed.
      reshards: whether blocks are resharded after each pass. Else they stay gathered from their
        first forward to their last backward pass of a step (ZeRO stage 2).
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    kept = {name: vars(parameter) for name, parameter in model.named_parameters()}
    narrow = MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    wide = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    after_forward = None if reshards else False  # None: all but the outermost unit
    for module, kind in fsdp_units(model, apart, is_narrow=dtype != torch.float32).items():
        if kind == APART:
            own_mesh = apart[next(module.parameters())]
            unit: Any = fully_shard(
                module,
                mesh=own_mesh,
                mp_policy=narrow,
                reshard_after_forward=after_forward,
                shard_placement_fn=partial(_sharded_dim, own_mesh),
            )
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)  # gloo has no other one with a factor
        elif kind == EXACT:
            fully_shard(module, mesh=mesh, mp_policy=wide, reshard_after_forward=False)
        else:
            fully_shard(module, mesh=mesh, mp_policy=narrow, reshard_after_forward=after_forward)
    for name, parameter in model.named_parameters():
        vars(parameter).update(kept[name])  # such as its init
    _gather_around_features(model)


@contextlib.contextmanager
def without_reduction(module: nn.Module, *, reshards: bool = True) -> Iterator[None]:
    """Context in which the sharded model inside `module` keeps gradients to itself.

    Unless it `reshards`, it keeps gathered weights after backward passes, too.
    """
    model = _units_in([module])[0]
    model.set_requires_gradient_sync(False)
    model.set_reshard_after_backward(reshards)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
        model.set_reshard_after_backward(True)


def reduce_next(model: nn.Module, modules: Iterable[nn.Module], *, ends: bool) -> None:
    """Let the next backward pass of modules inside a sharded model reduce gradients and reshard.

    Args:
      model: the sharded model.
      modules: in it.
      ends: whether to reduce the gradients of modules outside of its blocks, too.
    """
    units = {*_units_in(modules)}
    for unit in {*units, model} if ends else units - {model}:
        unit.set_requires_gradient_sync(True, recurse=False)
        unit.set_reshard_after_backward(True, recurse=False)


def reshard(model: nn.Module) -> None:
    """Free all gathered weights of a sharded model."""
    for unit in _units_in([model]):
        unit.reshard()


def _units_in(modules: Iterable[nn.Module]) -> list[Any]:
    """Return the parts of modules whose weights FSDP gathers together, in their order."""
    from torch.distributed.fsdp import FSDPModule

    return [part for module in modules for part in module.modules() if isinstance(part, FSDPModule)]


def gather_within(model: nn.Module, stage: Sequence[nn.Module]) -> Callable[[], None]:
    """Let the backward pass of a stage prefetch modules of this stage alone.

    By default FSDP prefetches the module that ran before; its stage may not be the next to run.

    Args:
      model: the sharded model.
      stage: the modules of a stage, in order.

    Returns:
      A function to call before each backward pass of the stage.
    """
    parts, whole = _units_in(stage), _units_in([model])[0]
    for before, part in pairwise(parts):
        part.set_modules_to_backward_prefetch([before])
    if not parts:
        return lambda: None
    parts[0].set_modules_to_backward_prefetch([parts[0]])  # nothing: it is there
    return partial(whole.set_modules_to_backward_prefetch, [parts[-1]])


def fsdp_units(
    model: nn.Module, apart: Container[nn.Parameter], *, is_narrow: bool
) -> dict[nn.Module, str]:
    """Return the modules whose parameters FSDP gathers together, inner modules first.

    `BLOCK` and `APART` units are gathered for each forward and each backward pass. `EXACT` units
    and the `REST` of the model stay gathered until the next backward pass ends.

    Args:
      model: the whole.
      apart: parameters that are sharded over other processes.
      is_narrow: whether gathered weights have another format than float32.
    """
    units = dict.fromkeys(_units_apart(model, apart), APART)
    units |= dict.fromkeys(_declaring(model, "keeps_float32") if is_narrow else [], EXACT)
    units |= dict.fromkeys(_declaring(model, "learns_apart"), BLOCK)
    return {**units, **dict.fromkeys(_blocks(model), BLOCK), model: REST}


def _units_apart(model: nn.Module, apart: Container[nn.Parameter]) -> list[nn.Module]:
    """Return the outermost modules whose parameters are all apart."""
    units: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        parameters = [*module.parameters()]
        if parameters and module not in inside and all(p in apart for p in parameters):
            units.append(module)
            inside.update(module.modules())
    return units


def _sharded_dim(mesh: "DeviceMesh", parameter: nn.Parameter) -> Any:
    """Return the dimension in which FSDP shards a parameter: the first with something for all.

    Few experts of a process may be shared by many. FSDP divides other dimensions evenly only.
    """
    from torch.distributed.tensor import Shard

    size, shape = mesh.size(mesh.ndim - 1), parameter.shape
    even = [dim for dim, length in enumerate(shape) if dim and length % size == 0]
    return Shard(even[0] if even and shape[0] % size else 0)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the distinct modules in the model's module lists that share no parameters.

    Modules without `forward`, such as skips, are left out: FSDP gathers where `forward` is called.
    """
    lists = [child for child in model.children() if isinstance(child, nn.ModuleList)]
    blocks = list(dict.fromkeys(block for blocks_of_list in lists for block in blocks_of_list))
    parts = [*blocks, *(child for child in model.children() if child not in lists)]
    holders = Counter(id(parameter) for part in parts for parameter in part.parameters())
    holders.update(id(parameter) for parameter in model.parameters(recurse=False))
    return [
        block
        for block in blocks
        if type(block).forward is not nn.Module.forward
        and all(holders[id(parameter)] == 1 for parameter in block.parameters())
    ]


def _declaring(model: nn.Module, attribute: str) -> list[nn.Module]:
    """Return the modules with parameters that have a true attribute, as routers and indexers."""
    return [
        module
        for module in model.modules()
        if getattr(module, attribute, False) and next(module.parameters(), None) is not None
    ]


def _gather_around_features(model: nn.Module) -> None:
    """Make `features` gather as `forward` does, and `train` and `eval` reshard.

    The unembedding is used after `features`, so modules outside of blocks stay gathered until the
    end of the backward pass. Evaluation has no backward pass, so `train` and `eval`, which are
    called between passes, reshard: code that reads or changes weights then sees shards.
    """
    from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

    assert isinstance(model, FSDPModule)
    if hasattr(model, "features"):
        register_fsdp_forward_method(model, "features")
    switch = model.train

    def train(mode: bool = True) -> nn.Module:
        reshard(model)
        return switch(mode)

    setattr(model, "train", train)  # noqa: B010

"""From a model without memory to a model with values, keeping tied weights tied."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["StartError", "initialize", "materialize"]


class StartError(ValueError):
    """A part of a model does not say how its values start; the message names it and the remedy."""


@torch.no_grad()
def materialize(model: nn.Module, *, device: torch.device, seed: int) -> None:
    """Gives every tensor of a meta-device model memory on `device`, and its first values.

    torch's own `to_empty` makes a new parameter at every place that holds one, which unties what
    was tied; here each parameter is replaced once, wherever it is held. The values of a parameter
    depend on the seed and on the parameter's name alone, not on the order of building, on the
    device or on what else the model holds.

    Raises:
      StartError: a module's parameters say no `init` and it has no `reset_parameters`, or it lost
        to the meta device what its `reset_parameters` does not fill.
    """
    twins: dict[Tensor, Tensor] = {}
    lost: list[tuple[str, nn.Module, list[str]]] = []
    for path, module in model.named_modules():
        _give_memory(module._parameters, twins, device)
        if buffers := _give_memory(module._buffers, twins, device):
            lost.append((path, module, buffers))
    carried = [(parameter, dict(vars(parameter))) for parameter in model.parameters()]
    model.to(device)
    for parameter, said in carried:
        vars(parameter).update(said)  # torch swaps a sharded one for another, which says nothing
    for path, module, buffers in lost:
        _refill(module, path, buffers, seed=seed)
    initialize(model, seed=seed)


@torch.no_grad()
def initialize(model: nn.Module, *, seed: int) -> None:
    """Draws every parameter anew, each from a generator seeded by (seed, its name).

    Drawn on the CPU, so that a GPU starts from the same numbers. Where a module of torch or of
    the user's has parameters that say no `init`, its `reset_parameters` is called first, with the
    global generator seeded by (seed, the module's path) for so long.

    Of a parameter that is sharded over processes each draws the whole and keeps its own part, one
    parameter after the other: all of them together hold what one process would.

    Raises:
      StartError: a module's parameters say no `init` and it has no `reset_parameters`, or that
        does not fill all of them.
    """
    for path, module in model.named_modules():
        if _unsaid(module):
            _start(module, path, seed=seed)
    for name, parameter in model.named_parameters():
        if (init := getattr(parameter, "init", None)) is not None:
            generator = torch.Generator().manual_seed(_seed(seed, name))
            values = _whole(parameter)
            init(values, generator)
            _keep(parameter, values)


def check_starts(model: nn.Module) -> None:
    """Says of a meta-device model what `materialize` would, as far as it shows without memory.

    Raises:
      StartError: a module's parameters say no `init` and it has no `reset_parameters`, or it lost
        a buffer to the meta device and has none.
    """
    for path, module in model.named_modules():
        lost = [name for name, x in module._buffers.items() if x is not None and x.is_meta]
        if names := [*_unsaid(module), *lost]:
            _reset_of(module, path, names)


def _unsaid(module: nn.Module) -> list[str]:
    """The names of a module's own parameters that do not say how they start."""
    own = module._parameters.items()
    return [name for name, one in own if one is not None and not hasattr(one, "init")]


def _seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/init/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _give_memory(
    held: dict[str, Any], twins: dict[Tensor, Tensor], device: torch.device
) -> list[str]:
    """Replaces the meta tensors among a module's own, and returns the names of these."""
    names = [name for name, tensor in held.items() if tensor is not None and tensor.is_meta]
    for name in names:
        meta = held[name]
        if meta not in twins:
            twins[meta] = _empty_like(meta, device)
        held[name] = twins[meta]
    return names


def _empty_like(tensor: Tensor, device: torch.device) -> Tensor:
    if type(tensor) in (Tensor, nn.Parameter) and tensor.is_contiguous():
        # As torch.empty_like, for which torch would load sympy where the tensor is a meta one.
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    else:
        empty = torch.empty_like(tensor, device=device)
    if isinstance(tensor, nn.Parameter):
        empty = nn.Parameter(empty, tensor.requires_grad)
        vars(empty).update(vars(tensor))  # above all its `init`
    return empty


def _refill(module: nn.Module, path: str, buffers: list[str], *, seed: int) -> None:
    """Lets a module fill buffers again; twice, over different content, to see that it does."""
    filled: list[dict[str, Tensor]] = []
    for content in (0, 1):
        for name in buffers:
            module.get_buffer(name).fill_(content)
        _reset(module, path, buffers, seed=seed)
        filled.append({name: module.get_buffer(name).clone() for name in buffers})
    empty = [name for name in buffers if not torch.equal(filled[0][name], filled[1][name])]
    _require_filled(module, path, empty)


def _start(module: nn.Module, path: str, *, seed: int) -> None:
    """Lets a module fill the parameters that say no `init`; which it does not fill would show."""
    names = [name for name in _unsaid(module) if module.get_parameter(name).is_floating_point()]
    with _unsharded(module):
        for name in names:
            module.get_parameter(name).fill_(torch.nan)
        _reset(module, path, _unsaid(module), seed=seed)
        empty = [name for name in names if module.get_parameter(name).isnan().any()]
    _require_filled(module, path, empty)


@contextmanager
def _unsharded(module: nn.Module) -> Iterator[None]:
    """Inside, sharded parameters are whole and without values; at the end each is sharded again.

    Those of modules within are drawn anew later: their own start, or their `init`, is to come.
    """
    held = [part._parameters for part in module.modules()]
    shards = {id(x): x for own in held for x in own.values() if isinstance(x, _sharded())}
    twins = {name: nn.Parameter(_whole(x), x.requires_grad) for name, x in shards.items()}
    places = [(own, name, id(x)) for own in held for name, x in own.items() if id(x) in twins]
    for own, name, number in places:
        own[name] = twins[number]
    yield
    for own, name, number in places:
        _keep(shards[number], twins[number])
        own[name] = shards[number]


def _sharded() -> type[Tensor]:
    # Found and not imported: whoever has a sharded tensor has imported it, and it takes seconds.
    module = sys.modules.get("torch.distributed.tensor")
    return _None if module is None else module.DTensor


class _None(Tensor):
    """No tensor is one."""


def _whole(parameter: Tensor) -> Tensor:
    """Memory on the CPU for all of a parameter."""
    return torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")


def _keep(parameter: Tensor, values: Tensor) -> None:
    """Copies into a parameter the values of all of it, of which it may hold a shard."""
    if isinstance(parameter, _sharded()):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        # Every process has the same values: nothing is sent.
        mesh, placements = parameter.device_mesh, parameter.placements
        values = distribute_tensor(values, mesh, placements, src_data_rank=None)
    parameter.copy_(values)


def _require_filled(module: nn.Module, path: str, empty: list[str]) -> None:
    if empty:
        raise StartError(
            f"{path or 'the model'} ({type(module).__name__}) leaves {', '.join(empty)} without "
            "values after building on the meta device: fill it in reset_parameters()."
        )


def _reset(module: nn.Module, path: str, names: list[str], *, seed: int) -> None:
    """Lets a module of torch or of the user's start itself, on the CPU, from a seed of its own."""
    reset = _reset_of(module, path, names)
    device = next(tensor.device for tensor in (*module.parameters(), *module.buffers()))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_seed(seed, path))
        module.cpu()
        reset()
        module.to(device)


def _reset_of(module: nn.Module, path: str, names: list[str]) -> Callable[[], object]:
    reset = getattr(module, "reset_parameters", None)
    if reset is None:
        or_init = ", or its parameters an `init`" if _unsaid(module) else ""
        raise StartError(
            f"{path or 'the model'} ({type(module).__name__}) does not say how "
            f"{', '.join(names)} {'starts' if len(names) == 1 else 'start'}: what a constructor "
            "fills is lost, since models are built without memory. Give it a method "
            f"reset_parameters() that fills it{or_init}."
        )
    return reset

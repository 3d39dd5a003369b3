"""Allocation and initialization of models on the meta device, preserving tied weights."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fidgpt.placement import is_absent, is_divided, keep, whole_shape

__all__ = ["InitError", "initialize", "materialize"]


class InitError(ValueError):
    """A module does not define how its values are initialized; the message names the remedy."""


@torch.no_grad()
def materialize(model: nn.Module, *, device: torch.device, seed: int) -> None:
    """Allocate the tensors of a meta-device model on `device` and initialize them.

    Unlike torch's `to_empty`, this preserves shared parameters. Initial values depend only on the
    seed and the parameter's name, not on the order of construction, the device or the rest of the
    model.

    Raises:
      InitError: a module has parameters without an `init` and no `reset_parameters`, or buffers on
        the meta device that its `reset_parameters` does not fill.
    """
    allocated: dict[Tensor, Tensor] = {}
    lost: list[tuple[str, nn.Module, list[str]]] = []
    for path, module in model.named_modules():
        _allocate(module._parameters, allocated, device)
        if buffers := _allocate(module._buffers, allocated, device):
            lost.append((path, module, buffers))
    attributes = [(parameter, dict(vars(parameter))) for parameter in model.parameters()]
    model.to(device)
    for path, module, buffers in lost:
        _fill(module, path, buffers, seed=seed)
    for parameter, kept in attributes:
        vars(parameter).update(kept)  # which `to` drops from sharded parameters
    initialize(model, seed=seed)


@torch.no_grad()
def initialize(model: nn.Module, *, seed: int) -> None:
    """Initialize every parameter, with a generator seeded by the seed and the parameter's name.

    Values are drawn on the CPU, so that they do not depend on the device. Modules with parameters
    that have no `init`, such as torch's own, are first reset by `reset_parameters`, with the global
    generator seeded by the seed and the module's path.

    Each process draws sharded parameters in full, one at a time, and keeps its shard, so that the
    values are the same as in a single process.

    Raises:
      InitError: a module has parameters without an `init` and no `reset_parameters` that fills all
        of them.
    """
    for path, module in model.named_modules():
        if names := _without_init(module):
            with _unsharded(module):
                _fill(module, path, names, seed=seed)
    for name, parameter in model.named_parameters():
        if (init := getattr(parameter, "init", None)) is not None and not is_absent(parameter):
            generator = torch.Generator().manual_seed(_seed(seed, name))
            values = _whole(parameter)
            init(values, generator)
            keep(parameter, values)


def check_inits(model: nn.Module) -> None:
    """Check that `materialize` can initialize a meta-device model, without allocating memory.

    Raises:
      InitError: a module has parameters without an `init`, or buffers on the meta device, and no
        `reset_parameters`.
    """
    for path, module in model.named_modules():
        lost = [name for name, x in module._buffers.items() if x is not None and x.is_meta]
        if names := [*_without_init(module), *lost]:
            _reset_of(module, path, names)


def _without_init(module: nn.Module) -> list[str]:
    """Return the names of a module's own parameters without an `init`."""
    own = module._parameters.items()
    return [name for name, tensor in own if tensor is not None and not hasattr(tensor, "init")]


def _seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/init/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _allocate(
    held: dict[str, Any], allocated: dict[Tensor, Tensor], device: torch.device
) -> list[str]:
    """Replace the meta tensors of a module, and return their names."""
    names = [name for name, tensor in held.items() if tensor is not None and tensor.is_meta]
    for name in names:
        meta = held[name]
        if meta not in allocated:
            allocated[meta] = _empty_like(meta, device)
        held[name] = allocated[meta]
    return names


def _empty_like(tensor: Tensor, device: torch.device) -> Tensor:
    if type(tensor) in (Tensor, nn.Parameter) and tensor.is_contiguous():
        # torch.empty_like of a meta tensor imports sympy.
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    else:
        empty = torch.empty_like(tensor, device=device)
    if isinstance(tensor, nn.Parameter):
        empty = nn.Parameter(empty, tensor.requires_grad)
        vars(empty).update(vars(tensor))  # such as its `init`
    return empty


def _fill(module: nn.Module, path: str, names: list[str], *, seed: int) -> None:
    """Call `reset_parameters` twice, over different values, to check that it fills all tensors."""
    first: dict[str, Tensor] = {}
    for content in (0, 1):
        for name in names:
            getattr(module, name).fill_(content)
        _reset(module, path, names, seed=seed)
        if not first:
            first = {name: getattr(module, name).clone() for name in names}
    if empty := [name for name in names if not torch.equal(first[name], getattr(module, name))]:
        raise InitError(
            f"{path or 'the model'} ({type(module).__name__}) leaves {', '.join(empty)} without "
            "values after building on the meta device: fill it in reset_parameters()."
        )


@contextmanager
def _unsharded(module: nn.Module) -> Iterator[None]:
    """Replace sharded parameters by full, uninitialized ones, and shard them on exit.

    This includes child modules, which are initialized later.
    """
    held = [part._parameters for part in module.modules()]
    shards = {id(x): x for own in held for x in own.values() if x is not None and is_divided(x)}
    full = {key: nn.Parameter(_whole(x), x.requires_grad) for key, x in shards.items()}
    places = [(own, name, id(x)) for own in held for name, x in own.items() if id(x) in full]
    for own, name, number in places:
        own[name] = full[number]
    yield
    for own, name, number in places:
        keep(shards[number], full[number])
        own[name] = shards[number]


def _whole(parameter: Tensor) -> Tensor:
    """Return an empty CPU tensor with the full shape of a parameter."""
    return torch.empty(whole_shape(parameter), dtype=parameter.dtype, device="cpu")


def _reset(module: nn.Module, path: str, names: list[str], *, seed: int) -> None:
    """Call `reset_parameters` of a module on the CPU, with a seed derived from its path."""
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
        kind = type(module)
        has_code = kind.__module__.partition(".")[0] != "torch"
        where = "" if has_code else f" to a class of your own that is derived from {kind.__name__}"
        or_init = ", or give its parameters an `init` (with_init)" if _without_init(module) else ""
        raise InitError(
            f"{path or 'the model'} ({kind.__name__}) does not define the initial values of "
            f"{', '.join(names)}: values set in a constructor are lost, since models are built on "
            f"the meta device. Add a method reset_parameters(){where} that fills them{or_init}."
        )
    return reset

"""Fully sharded data parallelism."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from fidgpt.parallel.data_parallel import Computation, DataParallel, ParallelError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


# torch.distributed.fsdp is imported where it is used, because its import is slow.
Model = TypeVar("Model", bound=nn.Module)


class FullyShardedDataParallel(DataParallel):
    """Shards weights, gradients and optimizer state over the processes (ZeRO stage 3, FSDP2).

    With torch's `fully_shard`, each block is gathered before it computes and resharded afterwards,
    in the forward and the backward pass; the rest of the model (embeddings, final norm) stays
    gathered from its forward to its backward pass. Gathered weights have the dtype of the
    precision; shards, gradient reduction and optimizer steps are in float32. (Rajbhandari et al.,
    2020, arXiv:1910.02054; Zhao et al., 2023, arXiv:2304.11277.)

    A single process behaves as with `DataParallel`.

    Args:
      num_shards: number of consecutive ranks that share one copy of the model, such as those of a
        node (hybrid sharding); defaults to all processes.
      device: device of the shards; defaults to this process's accelerator, or the CPU.

    Raises:
      ValueError: num_shards is below 1.
      ParallelError: num_shards does not divide the number of processes; raised when they join.
    """

    def __init__(
        self, *, num_shards: int | None = None, device: torch.device | None = None
    ) -> None:
        if num_shards is not None and num_shards < 1:
            raise ValueError(f"{num_shards=} must be 1 or more, or None for all processes.")
        super().__init__(device=device)
        self.num_shards = num_shards

    def shards_of(self, world_size: int) -> int:
        """Return the number of processes that share one copy of the model."""
        return min(self.num_shards or world_size, world_size)

    def shard(self, model: nn.Module, precision: Computation) -> None:
        """Shard every parameter of a model.

        Each block is an FSDP unit, unless it shares parameters with another module: tied parameters
        are gathered with the model.
        """
        if self.world_size == 1:
            return
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh, dtype = self._mesh(), precision.dtype
        kept = {name: vars(parameter) for name, parameter in model.named_parameters()}
        narrow = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        wide = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        for module in _kept_in_float32(model) if dtype != torch.float32 else []:
            fully_shard(module, mesh=mesh, mp_policy=wide, reshard_after_forward=False)
        for block in _blocks(model):
            fully_shard(block, mesh=mesh, mp_policy=narrow)
        fully_shard(model, mesh=mesh, mp_policy=narrow)
        for name, parameter in model.named_parameters():
            vars(parameter).update(kept[name])  # such as its init
        _gather_around_features(model)

    def replica(self, model: Model, precision: Computation) -> Model:
        """Return the model itself, which computes with gathered weights."""
        return super().replica(model, precision) if self.world_size == 1 else model

    @contextlib.contextmanager
    def filling(self) -> Iterator[None]:
        """Context in which full tensors may be copied into sharded parameters."""
        if self.world_size == 1:
            yield
            return
        from torch.distributed.tensor.experimental import implicit_replication

        with implicit_replication():
            yield

    def place(self, module: nn.Module) -> nn.Module:
        """Return the module itself: the sharded model reduces its own gradients."""
        return super().place(module) if self.world_size == 1 else module

    @contextlib.contextmanager
    def accumulating(self, module: nn.Module) -> Iterator[None]:
        """Context without the reduce-scatter of gradients, for all micro-batches but the last."""
        if self.world_size == 1:
            with super().accumulating(module):
                yield
            return
        from torch.distributed.fsdp import FSDPModule

        model = next(part for part in module.modules() if isinstance(part, FSDPModule))
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    def _mesh(self) -> "DeviceMesh":
        from torch.distributed.device_mesh import init_device_mesh

        shards = self.shards_of(self.world_size)
        copies, left = divmod(self.world_size, shards)
        if left:
            raise ParallelError(
                f"num_shards={self.num_shards} does not divide {self.world_size} processes; start "
                "a multiple of it with torchrun, or set another num_shards."
            )
        if copies == 1:
            return init_device_mesh(self.device.type, (shards,), mesh_dim_names=("shard",))
        names = ("replicate", "shard")
        return init_device_mesh(self.device.type, (copies, shards), mesh_dim_names=names)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the distinct modules in the model's module lists that share no parameters."""
    lists = [child for child in model.children() if isinstance(child, nn.ModuleList)]
    blocks = list(dict.fromkeys(block for one in lists for block in one))
    parts = [*blocks, *(child for child in model.children() if child not in lists)]
    holders = Counter(id(parameter) for part in parts for parameter in part.parameters())
    holders.update(id(parameter) for parameter in model.parameters(recurse=False))
    return [
        block
        for block in blocks
        if all(holders[id(parameter)] == 1 for parameter in block.parameters())
    ]


def _kept_in_float32(model: nn.Module) -> list[nn.Module]:
    """Return modules that always compute with float32 weights, such as routers."""
    return [
        module
        for module in model.modules()
        if getattr(module, "keeps_float32", False) and next(module.parameters(), None) is not None
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
        model.reshard()
        return switch(mode)

    setattr(model, "train", train)  # noqa: B010


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, without its import, which takes a second."""
    return hasattr(tensor, "device_mesh")

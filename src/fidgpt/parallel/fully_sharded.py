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


# torch.distributed.fsdp is imported where it is used: it takes longer than the rest of a start.
Model = TypeVar("Model", bound=nn.Module)


class FullyShardedDataParallel(DataParallel):
    """Shards weights, gradients and optimizer state over the processes (ZeRO stage 3, FSDP2).

    With torch's `fully_shard`, each block is gathered before it computes and resharded afterwards,
    in the forward and the backward pass; the rest of the model (embeddings, last norm) stays
    gathered from its forward to its backward pass. Gathered weights are in the number format of the
    precision; shards, reduction and optimizer steps are in float32. (Rajbhandari et al., 2020,
    arXiv:1910.02054; Zhao et al., 2023, arXiv:2304.11277.)

    A single process computes as with `DataParallel`.

    Args:
      num_shards: processes that share one copy of the model, of neighboring ranks, such as those
        of a node; the others hold further copies (hybrid sharding). Defaults to all processes.
      device: of the shards; defaults to this process's accelerator, or the CPU.

    Raises:
      ValueError: num_shards is below 1.
      ParallelError: when processes join: num_shards does not divide their number.
    """

    def __init__(
        self, *, num_shards: int | None = None, device: torch.device | None = None
    ) -> None:
        if num_shards is not None and num_shards < 1:
            raise ValueError(f"{num_shards=} must be 1 or more, or None for all processes.")
        super().__init__(device=device)
        self.num_shards = num_shards

    def shards_of(self, world_size: int) -> int:
        """Return how many processes share one copy of the model."""
        return min(self.num_shards or world_size, world_size)

    def shard(self, model: nn.Module, precision: Computation) -> None:
        """Shard every parameter of a model.

        Each block is a unit of gathering, unless it shares parameters with another module: tied
        parameters are gathered together, with the model.
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
        """Return the model itself, which computes with what it gathers."""
        return super().replica(model, precision) if self.world_size == 1 else model

    @contextlib.contextmanager
    def filling(self) -> Iterator[None]:
        """Allow full tensors to be copied into sharded parameters."""
        if self.world_size == 1:
            yield
            return
        from torch.distributed.tensor.experimental import implicit_replication

        with implicit_replication():
            yield

    def place(self, module: nn.Module) -> nn.Module:
        """Return the module itself: the model inside reduces its gradients."""
        return super().place(module) if self.world_size == 1 else module

    @contextlib.contextmanager
    def accumulating(self, module: nn.Module) -> Iterator[None]:
        """Skip the reduce-scatter of gradients: for every micro-batch but the last."""
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
                f"num_shards={self.num_shards} does not divide {self.world_size} processes: start "
                "a multiple of it with torchrun, or set another num_shards."
            )
        if copies == 1:
            return init_device_mesh(self.device.type, (shards,), mesh_dim_names=("shard",))
        names = ("replicate", "shard")
        return init_device_mesh(self.device.type, (copies, shards), mesh_dim_names=names)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the distinct modules of the model's lists that share no parameter with another one."""
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
    """Let `features` gather as `forward` does, and `train` and `eval` reshard.

    The unembedding is used after `features`, so modules outside of blocks stay gathered until the
    end of the backward pass. Evaluation has none; `train` and `eval`, called between passes, then
    reshard, so that code that reads or changes weights sees shards.
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
    """Return whether a tensor is a DTensor, without the second that its import takes."""
    return hasattr(tensor, "device_mesh")
